"""Which rows of a step yield tokens, and how many of them are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core._C import Scheduler, StepPlan
from deepinfer_core.engine.accounting import Accounting
from deepinfer_core.interfaces.sampler import SamplerOutput

#: Of sequences that decode, their drafts.
sequences = st.lists(st.integers(0, 4), min_size=1, max_size=5)
#: Lengths of prompts beside them: one of up to 4 tokens samples behind several known rows, a longer one does not.
prompts = st.lists(st.integers(1, 9), max_size=3)


def plan_of(num_drafts: list[int], prompts: list[int], seed: int) -> tuple[Scheduler, StepPlan]:
    """Decoding sequences with so many drafts, and prompts, some of whose chunks sample nothing."""
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    scheduler = Scheduler(page_size=4, num_pages=99, num_slots=9, max_chunk_tokens=4, **limits)
    random = np.random.default_rng(seed)
    handles = [scheduler.submit(str(i), np.array([1, 2], np.int32), max_tokens=30) for i in range(len(num_drafts))]
    plan = scheduler.schedule()
    scheduler.commit(plan, np.zeros(plan.num_samples, np.int32))
    for i, length in enumerate(prompts):
        scheduler.submit(f"prompt {i}", np.ones(length, np.int32), max_tokens=3)
    drafts = random.integers(0, 2, (len(handles), max(num_drafts))).astype(np.int32)
    return scheduler, scheduler.schedule((np.array(handles), np.array(num_drafts, np.int32), drafts))


@given(sequences, prompts, st.integers(0, 1000))
def test_a_sequence_gets_its_accepted_drafts_and_one_more_token(
    num_drafts: list[int], prompts: list[int], seed: int
) -> None:
    scheduler, plan = plan_of(num_drafts, prompts, seed)
    assert plan.num_drafts.tolist() == num_drafts + [0] * len(prompts)
    assert plan.samples.tolist() == [True] * len(num_drafts) + [length <= 4 for length in prompts]
    rows = plan.columns()["sampled_rows"].tolist()
    drawn = np.random.default_rng(seed + 1).integers(-1, 2, plan.num_sampled_rows).astype(np.int32)
    counts: list[int] = []
    kept: list[list[int]] = []
    expected_rows: list[int] = []
    for s in np.flatnonzero(plan.samples).tolist():
        first, end = len(expected_rows), int(plan.query_offsets[s + 1])
        expected_rows += range(end - 1 - int(plan.num_drafts[s]), end)
        count = 1
        while count <= plan.num_drafts[s] and drawn[first + count - 1] == plan.token_ids[expected_rows[first] + count]:
            count += 1
        counts.append(count)
        kept.append(drawn[first : first + count].tolist())
    assert rows == expected_rows
    found = Scheduler.accepted_counts(plan, drawn)
    assert found.tolist() == counts and found.dtype == np.int32
    before = [scheduler.output_tokens(handle).tolist() for handle in plan.handles[plan.samples].tolist()]
    reported, num_appended = Accounting(scheduler, {}, None).commit(plan, output_of(drawn), 0.0)
    after = [scheduler.output_tokens(handle).tolist() for handle in plan.handles[plan.samples].tolist()]
    appended = [[token for token in tokens if token >= 0] for tokens in kept]
    assert reported.tolist() == counts and num_appended == sum(map(len, appended))
    assert after == [old + new for old, new in zip(before, appended, strict=True)]


def output_of(drawn: Any) -> SamplerOutput:
    """Tokens without logprobs."""
    count = len(drawn)
    return SamplerOutput(
        token_ids=drawn,
        logprobs=np.full(count, np.nan, np.float32),
        ranks=np.zeros(count, np.int32),
        top_offsets=np.zeros(count + 1, np.int64),
        top_ids=np.empty(0, np.int32),
        top_logprobs=np.empty(0, np.float32),
    )
