"""Which rows of a step yield tokens, and how many of them are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core._C import Scheduler, StepPlan

#: Per sequence: its drafts, and tokens of a prompt that is cut into chunks beside it; 0 for none.
sequences = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def plan_of(num_drafts: list[int], prompt: int, seed: int) -> StepPlan:
    """Decoding sequences with so many drafts, and a prompt whose chunk samples nothing."""
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    scheduler = Scheduler(page_size=4, num_pages=99, num_slots=9, max_chunk_tokens=4, **limits)
    random = np.random.default_rng(seed)
    handles = [scheduler.submit(str(i), np.array([1, 2], np.int32), max_tokens=30) for i in range(len(num_drafts))]
    plan = scheduler.schedule()
    scheduler.commit(plan, np.zeros(plan.num_samples, np.int32))
    if prompt:
        scheduler.submit("prompt", np.ones(prompt, np.int32), max_tokens=3)
    drafts = random.integers(0, 2, (len(handles), max(num_drafts))).astype(np.int32)
    return scheduler.schedule((np.array(handles), np.array(num_drafts, np.int32), drafts))


@given(sequences, st.sampled_from([0, 3, 9]), st.integers(0, 1000))
def test_a_sequence_gets_its_accepted_drafts_and_one_more_token(num_drafts: list[int], prompt: int, seed: int) -> None:
    plan = plan_of(num_drafts, prompt, seed)
    assert plan.num_drafts[: len(num_drafts)].tolist() == num_drafts
    rows = plan.columns()["sampled_rows"].tolist()
    drawn = np.random.default_rng(seed + 1).integers(-1, 2, plan.num_sampled_rows).astype(np.int32)
    counts: list[int] = []
    expected_rows: list[int] = []
    for s in np.flatnonzero(plan.samples).tolist():
        first, end = len(expected_rows), int(plan.query_offsets[s + 1])
        expected_rows += range(end - 1 - int(plan.num_drafts[s]), end)
        count = 1
        while count <= plan.num_drafts[s] and drawn[first + count - 1] == plan.token_ids[expected_rows[first] + count]:
            count += 1
        counts.append(count)
    assert rows == expected_rows
    found = Scheduler.accepted_counts(plan, drawn)
    assert found.tolist() == counts and found.dtype == np.int32
