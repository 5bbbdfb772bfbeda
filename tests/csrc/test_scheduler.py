"""The scheduler's rules, one by one, on hand-made cases."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from deepinfer_core._C import CommitReport, Scheduler, StepPlan, sequence_transitions
from deepinfer_core.sequence import SequenceState


def make(**overrides: int) -> Scheduler:
    options = {
        "page_size": 4,
        "num_pages": 33,
        "num_slots": 9,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_model_len": 64,
        "max_chunk_tokens": 32,
    }
    return Scheduler(**{**options, **overrides})


def prompt(length: int, first: int = 100) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(first, first + length, dtype=np.int32)


def drafts(lists: dict[int, list[int]]) -> tuple[Any, Any, Any]:
    """As schedule() takes them."""
    counts = np.array([len(each) for each in lists.values()], np.int32)
    tokens = np.zeros((len(lists), int(counts.max(initial=0))), np.int32)
    for row, each in zip(tokens, lists.values(), strict=True):
        row[: len(each)] = each
    return np.array([*lists], np.int64), counts, tokens


def commit(scheduler: Scheduler, plan: StepPlan, token: int = 7) -> CommitReport:
    report = scheduler.commit(plan, np.full(plan.num_samples, token, np.int32))
    scheduler.audit()
    return report


def step(scheduler: Scheduler, token: int = 7) -> StepPlan:
    scheduler.release_deferred()
    plan = scheduler.schedule()
    scheduler.audit()
    commit(scheduler, plan, token)
    return plan


def advance_to(scheduler: Scheduler, handle: int, state: str) -> None:
    while scheduler.state(handle) != state:
        step(scheduler)


def test_a_request_runs_from_prefill_to_its_length() -> None:
    scheduler = make(token_history=2)
    handle = scheduler.submit("a", prompt(5), max_tokens=3)
    assert scheduler.state(handle) == "waiting"
    first = scheduler.schedule()
    assert first.token_ids.tolist() == [100, 101, 102, 103, 104]
    assert first.positions.tolist() == [0, 1, 2, 3, 4]
    assert first.history.tolist() == [[-1, -1]]
    assert (first.new_pages.tolist(), first.block_table.tolist()) == ([2], [1, 2])
    assert (first.is_decode.tolist(), first.samples.tolist()) == ([False], [True])
    report = commit(scheduler, first, 50)
    assert (report.handles.tolist(), report.tokens.tolist(), report.output_index.tolist()) == ([handle], [50], [0])
    second = step(scheduler, 51)
    assert (second.token_ids.tolist(), second.positions.tolist()) == ([50], [5])
    assert second.history.tolist() == [[103, 104]]
    assert (second.is_decode.tolist(), second.new_pages.tolist()) == ([True], [0])
    step(scheduler, 52)
    assert scheduler.take_finished() == [(handle, "length")]
    assert scheduler.output_tokens(handle).tolist() == [50, 51, 52]
    assert scheduler.tokens(handle).tolist() == [100, 101, 102, 103, 104, 50, 51, 52]
    assert not scheduler.has_unfinished()


def test_a_new_request_joins_the_very_next_step() -> None:
    scheduler = make()
    scheduler.submit("a", prompt(3), max_tokens=20)
    step(scheduler)
    late = scheduler.submit("b", prompt(3), max_tokens=20)
    assert late in step(scheduler).handles


def test_decodes_go_first_and_never_wait_for_arrivals() -> None:
    scheduler = make(max_num_batched_tokens=8, max_chunk_tokens=8)
    first = scheduler.submit("first", prompt(4), max_tokens=20)
    step(scheduler)
    for arrival in range(6):
        scheduler.submit(str(arrival), prompt(12), max_tokens=2)
        plan = step(scheduler)
        assert plan.handles[0] == first and plan.is_decode[0]
        assert plan.is_decode.tolist() == sorted(plan.is_decode.tolist(), reverse=True)
        assert plan.num_rows == 8


def test_row_order_is_stable_between_steps() -> None:
    scheduler = make()
    handles = [scheduler.submit(str(i), prompt(3 + i % 2), max_tokens=9) for i in range(4)]
    step(scheduler)
    assert all(step(scheduler).handles.tolist() == handles for _ in range(6))


def test_a_long_prompt_is_cut_into_chunks_that_take_pages_as_they_go() -> None:
    scheduler = make(max_num_batched_tokens=16, max_chunk_tokens=6)
    scheduler.submit("a", prompt(15), max_tokens=2)
    plans = [step(scheduler) for _ in range(3)]
    assert [p.starts[0] for p in plans] == [0, 6, 12]
    assert [p.num_tokens[0] for p in plans] == [6, 6, 3]
    assert [p.new_pages[0] for p in plans] == [2, 1, 1]
    assert [p.samples[0] for p in plans] == [False, False, True]


def test_running_limit_counts_slots_sequences_and_rows() -> None:
    for overrides in ({"max_num_seqs": 2}, {"num_slots": 3}, {"max_num_batched_tokens": 2}):
        scheduler = make(**overrides)
        handles = [scheduler.submit(str(i), prompt(1), max_tokens=4) for i in range(3)]
        plan = step(scheduler)
        assert plan.handles.tolist() == handles[:2]
        assert "the limit is 2" in scheduler.explain(handles[2])
        assert plan.skipped[0][0] == handles[2]


def test_admission_leaves_running_requests_room_to_grow() -> None:
    scheduler = make(num_pages=5)
    running = scheduler.submit("a", prompt(8), max_tokens=8)
    waiting = scheduler.submit("b", prompt(8), max_tokens=1)
    assert step(scheduler).handles.tolist() == [running]
    assert "needs 2 pages for its 8 known tokens; 2 of 4 are free" in scheduler.explain(waiting)
    assert step(scheduler).skipped == [(waiting, "no_free_page")]


def test_requests_that_cannot_grow_need_no_headroom() -> None:
    scheduler = make(num_pages=5)
    handles = [scheduler.submit(str(i), prompt(2), max_tokens=3) for i in range(4)]
    assert step(scheduler).handles.tolist() == handles


def test_the_victim_is_whoever_loses_the_least_work() -> None:
    scheduler = make(num_pages=6, max_num_batched_tokens=64)
    long = scheduler.submit("long", prompt(7), max_tokens=12)
    short = scheduler.submit("short", prompt(3), max_tokens=12)
    while not (plan := step(scheduler)).preempted:
        pass
    assert plan.preempted == [short]
    assert plan.handles.tolist() == [long]
    assert scheduler.state(short) == "preempted"
    assert (scheduler.num_computed(short), scheduler.num_preemptions) == (0, 1)


def test_among_equals_the_youngest_is_preempted_even_if_it_was_planned() -> None:
    scheduler = make(num_pages=5)
    old = scheduler.submit("old", prompt(4), max_tokens=12)
    young = scheduler.submit("young", prompt(4), max_tokens=12)
    preempted = [step(scheduler).preempted for _ in range(6)]
    assert preempted == [[], [], [], [], [], [young]]
    assert scheduler.state(old) == "decoding"


def test_a_planned_victim_leaves_the_plan_whole() -> None:
    """The oldest has the fewest computed tokens and is planned first; a younger one's page costs it its row."""
    scheduler = make(num_pages=8, max_num_batched_tokens=64, max_chunk_tokens=64)
    small = scheduler.submit("small", prompt(2), max_tokens=14)
    large = scheduler.submit("large", prompt(15), max_tokens=40)
    while not (plan := step(scheduler)).preempted:
        assert plan.handles.tolist() == [small, large]
    assert plan.preempted == [small]
    assert plan.handles.tolist() == [large]
    assert plan.query_offsets.tolist() == [0, 1]
    assert plan.block_table_offsets.tolist() == [0, plan.block_table.size]


def test_a_prefill_waits_for_pages_rather_than_evict_while_others_decode() -> None:
    scheduler = make(num_pages=16, max_num_batched_tokens=4, max_chunk_tokens=4)
    decode = scheduler.submit("decode", prompt(24), max_tokens=20)
    advance_to(scheduler, decode, "decoding")
    prefill = scheduler.submit("prefill", prompt(28), max_tokens=2)
    while not (plan := step(scheduler)).skipped:
        assert plan.handles.tolist() == [decode, prefill]
    assert plan.skipped == [(prefill, "no_free_page")]
    assert plan.handles.tolist() == [decode]
    assert "no page was free" in scheduler.explain(prefill)
    assert scheduler.num_preemptions == 0
    while scheduler.has_unfinished():
        assert step(scheduler)


def test_a_request_alone_waits_for_deferred_pages_and_keeps_its_work() -> None:
    scheduler = make(num_pages=4)
    gone = scheduler.submit("gone", prompt(8), max_tokens=1)
    alone = scheduler.submit("alone", prompt(4), max_tokens=5)
    commit(scheduler, scheduler.schedule())
    assert scheduler.state(gone) == "finished_length", "its two pages are deferred"
    plan = scheduler.schedule()
    assert not plan and plan.skipped == [(alone, "no_free_page")]
    assert scheduler.num_preemptions == 0
    scheduler.release_deferred()
    assert scheduler.schedule().starts.tolist() == [4]


def test_the_row_of_a_planned_victim_goes_to_a_prefill() -> None:
    scheduler = make(page_size=1, num_pages=22, max_num_batched_tokens=4, max_chunk_tokens=4)
    small = scheduler.submit("small", prompt(1), max_tokens=30)
    large = scheduler.submit("large", prompt(3), max_tokens=30)
    step(scheduler)
    prefill = scheduler.submit("prefill", prompt(12), max_tokens=2)
    while not (plan := step(scheduler)).preempted:
        assert plan.num_tokens.tolist() == [1, 1, 2]
    assert plan.preempted == [small]
    assert plan.handles.tolist() == [large, prefill]
    assert plan.num_tokens.tolist() == [1, 3]


def test_prefills_are_served_by_most_computed_tokens() -> None:
    scheduler = make(page_size=1, num_pages=28, max_num_batched_tokens=4, max_chunk_tokens=2)
    hog = scheduler.submit("hog", prompt(4), max_tokens=30)
    older = scheduler.submit("older", prompt(2), max_tokens=30)
    advance_to(scheduler, hog, "decoding")
    younger = scheduler.submit("younger", prompt(16), max_tokens=2)
    advance_to(scheduler, older, "preempted")
    scheduler.cancel(hog)
    assert step(scheduler).handles.tolist() == [younger, older]
    plan = step(scheduler)
    assert plan.handles.tolist() == [younger, older]
    assert plan.starts.tolist() == [14, 2]


def test_preempted_requests_come_back_before_younger_ones_and_keep_their_tokens() -> None:
    scheduler = make(num_pages=5)
    scheduler.submit("old", prompt(4), max_tokens=8)
    young = scheduler.submit("young", prompt(4), max_tokens=8)
    while scheduler.state(young) != "preempted":
        step(scheduler)
    newcomer = scheduler.submit("newcomer", prompt(1), max_tokens=1)
    kept = scheduler.output_tokens(young).tolist()
    assert len(kept) > 0
    assert "behind 1 earlier request" in scheduler.explain(newcomer)
    while scheduler.state(young) == "preempted":
        plan = step(scheduler)
    assert plan.starts[list(plan.handles).index(young)] == 0
    assert scheduler.output_tokens(young).tolist()[: len(kept)] == kept


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
def test_whole_pages_always_leave_a_row_to_compute(length: int) -> None:
    too_few = 2 * -(-length // 16) + 2  # two requests fit until both grow by a page
    scheduler = make(page_size=16, num_pages=too_few, max_num_batched_tokens=40, max_chunk_tokens=16)
    handles = [scheduler.submit(str(i), prompt(length), max_tokens=18) for i in range(3)]
    while scheduler.has_unfinished():
        plan = step(scheduler)
        assert plan.num_seqs > 0 and plan.num_tokens.min() >= 1
    assert sorted(scheduler.take_finished()) == [(h, "length") for h in handles]
    assert scheduler.num_preemptions > 0
    assert all(len(scheduler.output_tokens(h)) == 18 for h in handles)


@pytest.mark.parametrize(("min_tokens", "outputs"), [(0, 1), (1, 2), (3, 4), (9, 6)])
def test_stop_tokens_act_after_min_tokens(min_tokens: int, outputs: int) -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(2), max_tokens=6, min_tokens=min_tokens, stop_token_ids=[7, 1])
    while scheduler.has_unfinished():
        step(scheduler, 7)
    assert len(scheduler.output_tokens(handle)) == outputs
    assert scheduler.take_finished() == [(handle, "stop" if min_tokens < 6 else "length")]


@pytest.mark.parametrize(("overrides", "total"), [({"max_model_len": 10}, 10), ({"num_pages": 3}, 8)])
def test_no_request_exceeds_the_model_or_the_cache(overrides: dict[str, int], total: int) -> None:
    scheduler = make(**overrides)
    handle = scheduler.submit("a", prompt(5), max_tokens=10**12)
    while scheduler.has_unfinished():
        step(scheduler)
    assert scheduler.num_tokens(handle) == total
    assert scheduler.take_finished() == [(handle, "length")]


def test_a_failed_row_ends_alone() -> None:
    scheduler = make()
    bad, good = (scheduler.submit(name, prompt(2), max_tokens=4) for name in ("bad", "good"))
    report = scheduler.commit(scheduler.schedule(), np.array([-1, 9], np.int32))
    assert (report.handles.tolist(), report.tokens.tolist()) == ([good], [9])
    assert scheduler.take_finished() == [(bad, "error")]
    assert step(scheduler).handles.tolist() == [good]


# ---- Ending from outside ----


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_cancel_in_any_state_leaks_nothing_and_reports_once(state: str, in_flight: bool) -> None:
    scheduler = make(num_pages=6, max_num_batched_tokens=5, max_chunk_tokens=3)
    scheduler.submit("other", prompt(5), max_tokens=15)
    handle = scheduler.submit("a", prompt(4), max_tokens=15)
    advance_to(scheduler, handle, state)
    plan = scheduler.schedule() if in_flight else None
    assert scheduler.cancel(handle)
    assert not scheduler.cancel(handle)
    scheduler.audit()
    assert (handle, "abort") in scheduler.take_finished()
    if plan is not None:
        scheduler.release_deferred()
        scheduler.audit()
        assert handle not in commit(scheduler, plan).handles
    while scheduler.has_unfinished():
        assert handle not in step(scheduler).handles
    assert handle not in dict(scheduler.take_finished())
    scheduler.release_deferred()
    assert (scheduler.num_free_pages, scheduler.num_free_slots) == (5, 8)
    assert not scheduler.cancel(handle)


def test_resources_of_ended_requests_stay_until_released() -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(9), max_tokens=1)
    commit(scheduler, scheduler.schedule())
    assert scheduler.num_free_pages == 29
    scheduler.release_deferred()
    assert scheduler.num_free_pages == 32
    assert scheduler.output_tokens(handle).tolist() == [7], "readable until the terminal event is taken"
    scheduler.take_finished()
    scheduler.release_deferred()
    with pytest.raises(ValueError, match=f"handle {handle} is unknown"):
        scheduler.tokens(handle)


def test_a_stop_string_found_outside_ends_the_request() -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(2), max_tokens=9)
    with pytest.raises(RuntimeError, match="cannot go from waiting to finished_stop"):
        scheduler.finish(handle, "stop")
    step(scheduler)
    with pytest.raises(ValueError, match=r"'stop' or 'error', got 'length'.*cancel"):
        scheduler.finish(handle, "length")
    scheduler.audit()
    assert scheduler.finish(handle, "stop") and not scheduler.finish(handle, "error")
    assert scheduler.take_finished() == [(handle, "stop")]


def test_a_failed_forward_can_be_committed_as_errors() -> None:
    scheduler = make(max_num_batched_tokens=6)
    handles = [scheduler.submit(str(i), prompt(4), max_tokens=9) for i in range(2)]
    plan = scheduler.schedule()
    for handle in handles:
        scheduler.finish(handle, "error")
    assert len(commit(scheduler, plan, -1)) == 0
    scheduler.release_deferred()
    assert scheduler.take_finished() == [(h, "error") for h in handles]
    assert scheduler.num_free_pages == 32


# ---- Refusals ----


@pytest.mark.parametrize(
    ("tokens", "kwargs", "message"),
    [
        (prompt(0), {}, "prompt is empty"),
        (prompt(64), {}, "64 tokens, but max_model_len is 64"),
        (prompt(40), {}, "need 11 pages .* the cache has 8"),
        (prompt(4), {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        (prompt(4), {"min_tokens": -1}, "min_tokens must be at least 0, got -1"),
        (np.array([3, -2], np.int32), {}, "got -2 at position 1"),
        (np.zeros((2, 2), np.int32), {}, "one dimension, got 2"),
    ],
)
def test_a_refused_request_leaves_no_trace(tokens: Any, kwargs: dict[str, Any], message: str) -> None:
    scheduler = make(num_pages=9)
    with pytest.raises(ValueError, match=message):
        scheduler.submit("a", tokens, **{"max_tokens": 4, **kwargs})
    scheduler.audit()
    assert not scheduler.has_unfinished() and not scheduler.schedule() and scheduler.take_finished() == []
    handle = scheduler.submit("a", prompt(3), max_tokens=1)
    assert step(scheduler).handles.tolist() == [handle]


@pytest.mark.parametrize("tokens", [[1.5], np.array([1], np.int64), np.array([1.0]), "text", None])
def test_tokens_of_another_type_are_refused(tokens: Any) -> None:
    with pytest.raises(TypeError):
        make().submit("a", tokens, max_tokens=1)


def test_strided_tokens_are_read_correctly() -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(6)[::-2], max_tokens=1)
    assert scheduler.tokens(handle).tolist() == [105, 103, 101]


def test_ids_are_unique_among_the_living_only() -> None:
    scheduler = make()
    first = scheduler.submit("a", prompt(2), max_tokens=1)
    with pytest.raises(ValueError, match="'a': a request with this id is still alive"):
        scheduler.submit("a", prompt(2), max_tokens=1)
    step(scheduler)
    assert scheduler.submit("a", prompt(2), max_tokens=1) != first


def test_commit_accepts_each_plan_once_and_only_whole() -> None:
    scheduler, other = make(), make()
    for s in (scheduler, other):
        s.submit("a", prompt(2), max_tokens=3)
    plan, foreign = scheduler.schedule(), other.schedule()
    one = np.array([1], np.int32)
    with pytest.raises(RuntimeError, match="not the oldest outstanding one"):
        scheduler.commit(foreign, one)
    with pytest.raises(ValueError, match="samples 1 tokens, got 2"):
        scheduler.commit(plan, np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="got -5 at index 0"):
        scheduler.commit(plan, np.array([-5], np.int32))
    scheduler.audit()
    assert len(scheduler.commit(plan, one)) == 1
    with pytest.raises(RuntimeError, match="none is"):
        scheduler.commit(plan, one)


@pytest.mark.parametrize(
    ("name", "value"),
    [("page_size", 0), ("num_pages", 1), ("num_slots", 1), ("max_num_seqs", 0), ("max_num_batched_tokens", 0),
     ("max_model_len", 1), ("max_chunk_tokens", 0), ("token_history", -1)],
)  # fmt: skip
def test_bad_options_are_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least .* got {value}"):
        make(**{name: value})


@pytest.mark.parametrize("verb", ["tokens", "state", "explain", "cancel"])
def test_unknown_handles_are_errors(verb: str) -> None:
    with pytest.raises(ValueError, match="handle 42"):
        getattr(make(), verb)(42)


# ---- Plans as values ----


def test_a_plan_outlives_its_scheduler_and_cannot_be_written() -> None:
    scheduler = make()
    scheduler.submit("a", prompt(5), max_tokens=2)
    plan = scheduler.schedule()
    token_ids = plan.token_ids
    with pytest.raises(ValueError, match="read-only"):
        token_ids[0] = 1
    commit(scheduler, plan)
    del scheduler, plan
    assert token_ids.tolist() == [100, 101, 102, 103, 104]


def test_an_empty_plan_needs_no_commit() -> None:
    scheduler = make(token_history=3)
    plan = scheduler.schedule()
    assert not plan and plan.num_rows == 0
    assert plan.history.shape == (0, 3)
    assert plan.query_offsets.tolist() == plan.block_table_offsets.tolist() == [0]
    assert not scheduler.schedule()
    assert len(scheduler.commit(plan, np.zeros(0, np.int32))) == 0


def test_the_transition_table_matches_the_python_names() -> None:
    edges = {(SequenceState(a), SequenceState(b)) for a, b in sequence_transitions()}
    assert {state for edge in edges for state in edge} == set(SequenceState)
    assert not [a for a, _ in edges if a.is_finished]
    for state in SequenceState:
        if not state.is_finished:
            assert (state, SequenceState.FINISHED_ABORTED) in edges
            assert (state, SequenceState.FINISHED_ERROR) in edges
    alive = {(a.value, b.value) for a, b in edges if not b.is_finished}
    assert alive == {
        ("held", "waiting"),
        ("waiting", "prefilling"),
        ("prefilling", "decoding"),
        ("prefilling", "preempted"),
        ("decoding", "preempted"),
        ("preempted", "prefilling"),
    }


# ---- Process ----


def test_the_extension_does_not_import_torch() -> None:
    code = "import sys, deepinfer_core._C, deepinfer_core.sequence; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_threads_may_submit_cancel_and_ask_while_one_steps() -> None:
    scheduler = make(num_pages=17)
    submitted: list[int] = []
    failures: list[BaseException] = []

    def client(name: int) -> None:
        try:
            for i in range(60):
                handle = scheduler.submit(f"{name}-{i}", prompt(1 + i % 9), max_tokens=1 + i % 7)
                submitted.append(handle)
                if i % 3 == 0:
                    scheduler.cancel(handle)
                scheduler.audit()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    finished: list[int] = []
    while any(thread.is_alive() for thread in threads) or scheduler.has_unfinished():
        step(scheduler)
        finished += [handle for handle, _ in scheduler.take_finished()]
    finished += [handle for handle, _ in scheduler.take_finished()]
    assert failures == []
    assert sorted(finished) == sorted(submitted)
    scheduler.release_deferred()
    assert (scheduler.num_free_pages, scheduler.num_free_slots) == (16, 8)


def test_accepted_drafts_and_one_more_token_are_appended_in_one_step() -> None:
    scheduler = make(token_history=2)
    handle = scheduler.submit("a", prompt(3), max_tokens=20)
    step(scheduler, 50)
    plan = scheduler.schedule(drafts({handle: [51, 52, 53], 99: [1]}))
    assert (plan.token_ids.tolist(), plan.positions.tolist()) == ([50, 51, 52, 53], [3, 4, 5, 6])
    assert (plan.num_tokens.tolist(), plan.num_drafts.tolist(), plan.num_samples) == ([4], [3], 1)
    assert (plan.history.tolist(), plan.new_pages.tolist()) == ([[101, 102]], [1])
    assert "1 in flight and 3 drafts" in scheduler.explain(handle)
    report = scheduler.commit(plan, np.array([51, 52, 60], np.int32), np.array([3], np.int32))
    scheduler.audit()
    assert report.tokens.tolist() == [51, 52, 60] and report.output_index.tolist() == [1, 2, 3]
    assert scheduler.num_computed(handle) == 6 and scheduler.num_tokens(handle) == 7
    following = scheduler.schedule()
    assert (following.token_ids.tolist(), following.starts.tolist()) == ([60], [6])
    assert following.history.tolist() == [[51, 52]]


def test_rejected_drafts_give_their_pages_back() -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(3), max_tokens=20)
    step(scheduler)
    free = scheduler.num_free_pages
    plan = scheduler.schedule(drafts({handle: [1] * 9}))
    assert plan.new_pages.tolist() == [3] and scheduler.num_free_pages == free - 3
    scheduler.commit(plan, np.array([7], np.int32), np.array([1], np.int32))
    scheduler.audit()
    assert scheduler.num_free_pages == free


def test_what_follows_a_terminal_token_is_dropped() -> None:
    for tokens, stops, limit, kept, reason in (
        ([1, 2, 3, 4], [2], 20, [1, 2], "stop"),
        ([1, 2, 3, 4], [], 5, [1, 2, 3, 4], "length"),
        ([1, 2, 3, -1], [], 20, [1, 2, 3], "error"),
        ([1, 2, 3, -1], [3], 20, [1, 2, 3], "stop"),
    ):
        scheduler = make()
        handle = scheduler.submit("a", prompt(3), max_tokens=limit, stop_token_ids=stops)
        step(scheduler, 50)
        plan = scheduler.schedule(drafts({handle: [1, 2, 3]}))
        report = scheduler.commit(plan, np.array(tokens, np.int32), np.array([4], np.int32))
        scheduler.audit()
        assert report.tokens.tolist() == kept
        assert scheduler.take_finished() == [(handle, reason)]
        scheduler.release_deferred()
        assert scheduler.num_free_pages == scheduler.num_pages - 1


def test_nothing_is_drafted_past_the_longest_output() -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(3), max_tokens=4)
    step(scheduler)
    plan = scheduler.schedule(drafts({handle: [1] * 9}))
    assert plan.num_drafts.tolist() == [2], "two drafts and one more token end it"


def test_drafts_share_the_rows_that_are_left() -> None:
    scheduler = make(max_num_batched_tokens=9)
    handles = [scheduler.submit(str(i), prompt(2), max_tokens=20) for i in range(4)]
    step(scheduler)
    plan = scheduler.schedule(drafts({handle: [1] * 5 for handle in handles[1:]}))
    assert plan.num_drafts.tolist() == [0, 2, 2, 1] and plan.num_rows == 9


def test_bad_drafts_and_counts_change_nothing() -> None:
    scheduler = make()
    handle = scheduler.submit("a", prompt(3), max_tokens=20)
    step(scheduler)
    with pytest.raises(ValueError, match="drafts must be token ids, got -1"):
        scheduler.schedule(drafts({handle: [1, -1]}))
    plan = scheduler.schedule(drafts({handle: [1, 2]}))
    for tokens, counts, message in (
        ([1, 2, 3], [], "samples 1 tokens, got 3"),
        ([1, 2, 3, 4], [4], r"count must be in 1\.\.3, got 4"),
        ([], [0], r"count must be in 1\.\.3, got 0"),
        ([1, 5, 6], [3], "the first 2 of 3 tokens must be its drafts"),
        ([1, 2], [1, 1], "has 1 sampling sequences, got 2 counts"),
        ([1], [3], "samples 3 tokens, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            scheduler.commit(plan, np.array(tokens, np.int32), np.array(counts, np.int32))
    scheduler.commit(plan, np.array([1, 2, 3], np.int32), np.array([3], np.int32))
    scheduler.audit()


# -- several samples of a request ------------------------------------------------------------------


def used_pages(scheduler: Scheduler) -> int:
    return scheduler.num_pages - 1 - scheduler.num_free_pages


def table(plan: StepPlan, place: int) -> list[int]:
    return plan.block_table[plan.block_table_offsets[place] : plan.block_table_offsets[place + 1]].tolist()


def test_samples_start_from_the_prompt_that_the_first_has_computed() -> None:
    scheduler = make()
    first = scheduler.submit("a", prompt(10), max_tokens=4, num_completions=3)
    plan = step(scheduler)
    assert plan.handles.tolist() == [first] and used_pages(scheduler) == 3
    assert plan.skipped == [(first + 1, "shared_prompt"), (first + 2, "shared_prompt")]
    plan = step(scheduler)
    assert plan.handles.tolist() == [first, first + 1, first + 2]
    assert (plan.starts.tolist(), plan.num_tokens.tolist()) == ([10, 9, 9], [1, 1, 1])
    assert (plan.is_decode.tolist(), plan.samples.tolist()) == ([True, False, False], [True, True, True])
    tables = [table(plan, place) for place in range(3)]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert plan.page_copies.tolist() == [[tables[0][2], tables[1][2]], [tables[0][2], tables[2][2]]]
    assert plan.slot_copies.tolist() == [[plan.slots[0], plan.slots[1]], [plan.slots[0], plan.slots[2]]]
    assert used_pages(scheduler) == 2 + 3
    plan = step(scheduler)
    assert plan.is_decode.all() and plan.slot_copies.shape == plan.page_copies.shape == (0, 2)


def test_a_page_that_holds_only_the_recomputed_token_is_not_copied() -> None:
    scheduler = make()
    scheduler.submit("a", prompt(9), max_tokens=4, num_completions=2)
    step(scheduler)
    plan = step(scheduler)
    assert plan.starts.tolist() == [9, 8] and len(plan.slot_copies) == 1 and len(plan.page_copies) == 0
    assert used_pages(scheduler) == 2 + 2


def test_samples_fork_from_one_that_its_first_token_ended() -> None:
    scheduler = make()
    first = scheduler.submit("a", prompt(10), max_tokens=1, num_completions=4)
    rows = [step(scheduler).num_rows for _ in range(2)]
    assert rows == [10, 3], "the prompt is computed once"
    assert scheduler.take_finished() == [(first + sample, "length") for sample in range(4)]
    scheduler.release_deferred()
    assert used_pages(scheduler) == 0


def test_an_ended_source_gives_way_to_whoever_runs() -> None:
    """What it holds is of use to forks only, and comes back before anybody is preempted."""
    scheduler = make(num_pages=5, page_size=4)
    running = scheduler.submit("a", prompt(4), max_tokens=13)
    advance_to(scheduler, running, "decoding")
    scheduler.submit("b", prompt(5), max_tokens=1, num_completions=2)
    while scheduler.num_running or scheduler.num_waiting:
        step(scheduler)
    assert scheduler.num_preemptions == 0


def test_when_the_first_is_gone_another_computes_the_prompt() -> None:
    scheduler = make(max_chunk_tokens=4)
    first = scheduler.submit("a", prompt(10), max_tokens=3, num_completions=3)
    step(scheduler)
    scheduler.cancel(first)
    plan = step(scheduler)
    assert (plan.handles.tolist(), plan.starts.tolist()) == ([first + 1], [0])
    assert plan.skipped == [(first + 2, "shared_prompt")]
    for _ in range(3):
        plan = step(scheduler)
    assert (plan.handles.tolist(), plan.starts.tolist()) == ([first + 1, first + 2], [10, 9])


def test_samples_that_wait_for_their_prompt_block_nobody() -> None:
    scheduler = make(max_chunk_tokens=4)
    first = scheduler.submit("a", prompt(12), max_tokens=3, num_completions=3)
    other = scheduler.submit("b", prompt(3), max_tokens=3)
    assert step(scheduler).handles.tolist() == [first, other]
    assert "prompt that it shares" in scheduler.explain(first + 1)
    assert scheduler.explain(first).startswith("prefilling")


def test_nobody_takes_the_places_and_pages_of_samples_that_wait_for_their_prompt() -> None:
    scheduler = make(max_num_seqs=3, max_chunk_tokens=4)
    first = scheduler.submit("a", prompt(8), max_tokens=3, num_completions=3)
    other = scheduler.submit("b", prompt(3), max_tokens=3)
    assert step(scheduler).skipped[-1] == (other, "running_limit")
    assert "1 run and 2 are about to" in scheduler.explain(other)
    step(scheduler)
    assert step(scheduler).handles.tolist() == [first, first + 1, first + 2]
    scheduler = make(num_pages=7, max_chunk_tokens=4)
    scheduler.submit("a", prompt(8), max_tokens=3, num_completions=3)
    other = scheduler.submit("b", prompt(3), max_tokens=3)
    assert step(scheduler).skipped[-1] == (other, "no_free_page")


def test_samples_beyond_the_limit_run_when_there_is_room() -> None:
    scheduler = make(max_num_seqs=2)
    first = scheduler.submit("a", prompt(6), max_tokens=2, num_completions=5)
    events: list[tuple[int, str]] = []
    while scheduler.has_unfinished():
        step(scheduler)
        events += scheduler.take_finished()
    assert sorted(events) == [(first + sample, "length") for sample in range(5)]


def test_the_id_of_a_request_is_live_until_its_last_sample_has_ended() -> None:
    scheduler = make()
    first = scheduler.submit("a", prompt(3), max_tokens=3, num_completions=2)
    assert scheduler.request_id(first) == scheduler.request_id(first + 1) == "a"
    scheduler.cancel(first)
    with pytest.raises(ValueError, match="still alive"):
        scheduler.submit("a", prompt(3), max_tokens=3)
    scheduler.cancel(first + 1)
    assert scheduler.submit("a", prompt(3), max_tokens=3) == first + 2
    with pytest.raises(ValueError, match="num_completions must be at least 1, got 0"):
        scheduler.submit("b", prompt(3), max_tokens=3, num_completions=0)
