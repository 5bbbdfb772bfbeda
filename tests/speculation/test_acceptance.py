"""Which rows of a step yield tokens, and how many of them are accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.speculation.acceptance import accepted_counts, kept_rows, sampled_rows

#: Per sequence: rows that are known, drafts, and whether it samples.
sequences = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=6)


def plan_of(parts: list[tuple[int, int, bool]], seed: int) -> Any:
    drafts = np.array([count if samples else 0 for _, count, samples in parts], np.int32)
    rows = np.array([known for known, _, _ in parts], np.int32) + drafts
    offsets = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    return SimpleNamespace(
        num_drafts=drafts,
        samples=np.array([samples for _, _, samples in parts]),
        query_offsets=offsets,
        num_rows=int(offsets[-1]),
        token_ids=np.random.default_rng(seed).integers(0, 2, offsets[-1]).astype(np.int32),
    )


@given(sequences, st.integers(0, 1000))
def test_a_sequence_gets_its_accepted_drafts_and_one_more_token(parts: list[tuple[int, int, bool]], seed: int) -> None:
    plan = plan_of(parts, seed)
    rows = sampled_rows(cast("Any", plan)).tolist()
    drawn = np.random.default_rng(seed + 1).integers(-1, 2, len(rows)).astype(np.int32)
    counts, kept, expected_rows = [], [], []
    for s, (_, _, samples) in enumerate(parts):
        if not samples:
            continue
        first, end = len(expected_rows), int(plan.query_offsets[s + 1])
        expected_rows += range(end - 1 - int(plan.num_drafts[s]), end)
        count = 1
        while count <= plan.num_drafts[s] and drawn[first + count - 1] == plan.token_ids[expected_rows[first] + count]:
            count += 1
        counts.append(count)
        kept += range(first, first + count)
    assert rows == expected_rows
    found = accepted_counts(cast("Any", plan), drawn)
    assert found.tolist() == counts and found.dtype == np.int32
    assert kept_rows(cast("Any", plan), found).tolist() == kept
