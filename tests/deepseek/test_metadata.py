"""What layers are told of a step's rows, against a computation row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.interfaces.cache import PAGE_TOKENS
from deepinfer_core.interfaces.model import BatchRows
from deepinfer_plugin_deepseek.cache import compress_ring, window_ring
from deepinfer_plugin_deepseek.metadata import POSITIONS, WINDOW_PLACES, ratio_name, step_metadata

chunks = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30)), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def config(golden_case):
    return golden_case("v41-tiny-bf16").model.config


@given(parts=chunks, rollback=st.integers(0, 5))
def test_metadata_is_what_each_row_needs(config, parts, rollback):
    rows, line = [], []
    for i, (start, count) in enumerate(parts):
        for position in range(start, start + count):
            line.append((position, i, i + 1, start, start + count - 1))
            rows.append((i, position))
    positions, *columns = np.array(line, np.int64).T
    tables = np.array([[3 * i + 1, 3 * i + 2] for i in range(len(parts))], np.int32)
    found = step_metadata(config, rollback, BatchRows(positions, *(c.astype(np.int32) for c in columns), tables))

    def ring_place(sequence, position, ring):
        return (sequence + 1) * ring + position % ring

    def kept(ring):
        ends = [start + count for start, count in parts]
        return [ring_place(i, p, ring) if p >= ends[i] - ring else -1 for i, p in rows]

    assert found.pop(POSITIONS).tolist() == [p for _, p in rows]
    assert found.pop(WINDOW_PLACES).tolist() == kept(window_ring(config, rollback))
    assert config.plan.ratios == (1, 2)
    for ratio in config.plan.ratios:
        groups = [(i, p // ratio) for i, p in rows if p % ratio == ratio - 1]
        per_page = PAGE_TOKENS // ratio

        def take(part, ratio=ratio):
            return found.pop(ratio_name(ratio, part)).tolist()

        assert take("visible") == [(p + 1) // ratio for _, p in rows]
        assert take("positions") == [entry * ratio for _, entry in groups]
        assert take("entries") == [int(tables[i, e // per_page]) * per_page + e % per_page for i, e in groups]
        if ratio == 1:
            continue
        ring = compress_ring(ratio, rollback)
        assert take("ring_places") == kept(ring)
        assert take("members") == [
            [
                rows.index((i, p)) if (i, p) in rows else -1 - ring_place(i, p, ring)
                for p in range(entry * ratio, entry * ratio + ratio)
            ]
            for i, entry in groups
        ]
    assert not found, "nothing else"
