"""A plan's rows as columns: what numpy says of the plan's arrays, and the same again from bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core._C import Scheduler, StepPlan
from deepinfer_core.worker.step_input import StepInput

LOOKBACK = 3


def plans(lengths: list[int], drafts: int, *, ahead: bool) -> StepPlan:
    """Prompts some of which decode, with drafts or planned ahead of the device, and one that is cut into chunks."""
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 40, "max_model_len": 64}
    scheduler = Scheduler(page_size=4, num_pages=99, num_slots=9, max_chunk_tokens=7, token_history=LOOKBACK, **limits)
    for number, length in enumerate(lengths):
        scheduler.submit(str(number), np.arange(1, length + 1, dtype=np.int32) + 10 * number, max_tokens=9)
    plan = scheduler.schedule()
    if ahead:
        return scheduler.schedule()
    scheduler.commit(plan, np.full(plan.num_samples, 5, np.int32))
    handles = scheduler.decoding().handles
    tokens = np.full((len(handles), drafts), 6, np.int32)
    return scheduler.schedule((handles, np.full(len(handles), drafts, np.int32), tokens))


def known(plan: StepPlan, row: int, back: int) -> int:
    """The token some places before a row, by the plan's token ids and history."""
    s = int(np.searchsorted(plan.query_offsets, row, side="right")) - 1
    place = row - back
    if place >= plan.query_offsets[s]:
        return int(plan.token_ids[place])
    return int(plan.history[s, LOOKBACK - (int(plan.query_offsets[s]) - place)])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 3), st.booleans())
def test_columns_are_those_of_the_plan(lengths: list[int], drafts: int, ahead: bool) -> None:
    plan = plans(lengths, drafts, ahead=ahead)
    step = StepInput.of(plan)
    seq = np.repeat(np.arange(plan.num_seqs), plan.num_tokens)
    rows = step.rows
    expected = [
        (rows.positions, plan.positions, np.int64),
        (rows.seq_of_row, seq, np.int32),
        (rows.slots, plan.slots[seq], np.int32),
        (rows.starts, plan.starts[seq], np.int32),
        (rows.ends, (plan.starts + plan.num_tokens - 1)[seq], np.int32),
        (step.token_ids, plan.token_ids, np.int64),
        (step.pending_rows, np.flatnonzero(plan.token_sources >= 0), np.int64),
        (step.pending_sources, plan.token_sources[plan.token_sources >= 0], np.int64),
    ]
    for found, wanted, dtype in expected:
        assert found.tolist() == wanted.tolist() and found.dtype == dtype
    assert plan.num_pending == len(step.pending_rows) and (ahead or plan.num_pending == 0)
    contexts = [[known(plan, row, back) for back in range(1 + LOOKBACK)] for row in range(plan.num_rows)]
    assert step.context_ids.tolist() == contexts
    tables = np.split(plan.block_table, plan.block_table_offsets[1:-1])[: plan.num_seqs]
    for table, found in zip(tables, rows.block_tables, strict=True):
        assert found.tolist() == [*table.tolist(), *[0] * (len(found) - len(table))]
    assert not any(np.shares_memory(step.token_ids, each) for each in (plan.token_ids, step.context_ids))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 3), st.booleans())
def test_bytes_bring_the_same_columns(lengths: list[int], drafts: int, ahead: bool) -> None:
    step = StepInput.of(plans(lengths, drafts, ahead=ahead))
    again = StepInput.from_bytes(step.to_bytes())
    for owner, copy in ((step, again), (step.rows, again.rows)):
        for name in owner.__slots__ if hasattr(owner, "__slots__") else vars(owner):
            value = getattr(owner, name, None)
            if isinstance(value, np.ndarray):
                assert getattr(copy, name).tolist() == value.tolist() and getattr(copy, name).dtype == value.dtype


def test_other_bytes_are_refused() -> None:
    from deepinfer_core.columns import pack

    with pytest.raises(ValueError, match="a step's columns must be positions"):
        StepInput.from_bytes(pack({"positions": np.zeros(1, np.int64)}))
