"""From a plan to a batch: what is on the device is what the host knows of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core import _C
from deepinfer_core.interfaces.model import BatchRows
from deepinfer_core.worker.input_metadata import build_input_batch

CPU = torch.device("cpu")
COLUMNS = ("positions", "seq_of_row", "slots", "starts", "ends", "block_tables")

#: ``(first position, rows)`` of each sequence's chunk.
chunks = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=5)


def rows_of(parts: list[tuple[int, int]]) -> BatchRows:
    """Sequence i has slot i + 3 and pages 10 i, 10 i + 1, …"""
    counts = [count for _, count in parts]

    def column(values: Any) -> Any:
        return np.repeat(np.array(values, np.int32), counts)

    starts = column([start for start, _ in parts])
    return BatchRows(
        positions=np.concatenate([np.arange(start, start + count) for start, count in parts]),
        seq_of_row=column(range(len(parts))),
        slots=column([i + 3 for i in range(len(parts))]),
        starts=starts,
        ends=starts + column(counts) - 1,
        block_tables=np.array([[10 * i + page for page in range(3)] for i in range(len(parts))], np.int32),
    )


@given(parts=chunks, size=st.integers(1, 50))
def test_a_ring_keeps_the_last_rows_of_each_chunk(parts: list[tuple[int, int]], size: int) -> None:
    places = rows_of(parts).ring_places(size)
    expected = [
        (i + 3) * size + position % size if position + size >= start + count else -1
        for i, (start, count) in enumerate(parts)
        for position in range(start, start + count)
    ]
    assert places.dtype == np.int64 and places.tolist() == expected
    kept = places[places >= 0]
    assert len(set(kept.tolist())) == len(kept) == sum(min(size, count) for _, count in parts), "no place twice"


@given(parts=chunks, per_page=st.sampled_from([128, 64, 1]))
def test_entries_lie_in_their_sequences_pages(parts: list[tuple[int, int]], per_page: int) -> None:
    rows = rows_of(parts)
    some = np.arange(0, len(rows.positions), 2)
    entries = rows.positions[some] % (3 * per_page)
    expected = [
        (10 * int(rows.seq_of_row[row]) + entry // per_page) * per_page + entry % per_page
        for row, entry in zip(some.tolist(), entries.tolist(), strict=True)
    ]
    assert rows.page_entries(entries, per_page, some).tolist() == expected
    everything = rows.page_entries(np.zeros_like(rows.positions), per_page)
    assert everything.tolist() == (10 * rows.seq_of_row.astype(np.int64) * per_page).tolist()


@pytest.fixture
def plan() -> Any:
    """Two prompts in one step, of which the second one's history is longer than the lookback."""
    scheduler = _C.Scheduler(
        num_pages=9, num_slots=4, max_num_seqs=3, max_num_batched_tokens=300, max_model_len=400, max_chunk_tokens=130,
        token_history=2,
    )  # fmt: skip
    for name, count in (("a", 5), ("b", 200)):
        scheduler.submit(name, np.arange(count, dtype=np.int32) + 7, max_tokens=3, num_completions=1)
    scheduler.commit(scheduler.schedule(), np.array([50], np.int32))
    return scheduler.schedule()


def test_columns_and_metadata_are_copied_as_they_are(plan: Any) -> None:
    seen: list[BatchRows] = []

    def build(rows: BatchRows) -> dict[str, Any]:
        seen.append(rows)
        return {"pairs": rows.positions[:, None] + np.arange(2), "none": np.zeros((0, 3), np.int32)}

    batch = build_input_batch(plan, CPU, build, lambda rows: {"halves": rows.positions / 2})
    (rows,) = seen
    for name in COLUMNS:
        column, array = getattr(batch, name), getattr(rows, name)
        assert column.is_contiguous() and column.numpy().dtype == array.dtype and (column.numpy() == array).all(), name
    assert len(batch) == len(rows.positions) == 71
    assert batch.token_ids.dtype == batch.context_ids.dtype == batch.positions.dtype == torch.int64
    assert batch.token_ids.tolist() == [50, *range(137, 207)]
    assert batch.context_ids[:2].tolist() == [[50, 11, 10], [137, 136, 135]]
    assert batch.metadata["pairs"].tolist() == [[p, p + 1] for p in rows.positions.tolist()]
    assert batch.metadata["none"].shape == (0, 3) and batch.metadata["none"].dtype == torch.int32
    assert batch.metadata["halves"].tolist() == (rows.positions / 2).tolist()


def test_tensors_of_a_batch_share_no_memory_with_each_other_or_the_plan(plan: Any) -> None:
    """Whoever fills in tokens later changes nothing else."""
    batch = build_input_batch(plan, CPU, lambda rows: {"positions": rows.positions})
    before = {name: getattr(batch, name).clone() for name in COLUMNS}
    batch.token_ids.fill_(-5)
    batch.context_ids[:, 0].fill_(-6)
    assert all(torch.equal(getattr(batch, name), before[name]) for name in COLUMNS)
    assert torch.equal(batch.metadata["positions"], batch.positions) and int(plan.token_ids.min()) >= 0
    assert bool((batch.token_ids == -5).all()) and bool((batch.context_ids[:, 1:] >= 0).all())


def test_names_of_metadata_are_used_once(plan: Any) -> None:
    def build(rows: BatchRows) -> dict[str, Any]:
        return {"same": rows.positions}

    with pytest.raises(AssertionError, match="names of its own"):
        build_input_batch(plan, CPU, build, build)
