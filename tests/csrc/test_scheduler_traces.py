"""Properties of the scheduler over random traces, checked through a device that believes only the plan.

The device keeps tokens in pages and a running hash in slots, exactly as a model keeps KV and window state. A wrong
page, slot, position, history or order therefore changes the tokens it samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deepinfer_core._C import Scheduler, StepPlan

VOCABULARY = 11
HISTORY = 3


def extend(state: int, token: int) -> int:
    return (state * 1_000_003 + token + 1) % (2**61 - 1)


def sampled(state: int, sample: int = 0) -> int:
    return (state >> (7 + sample)) % VOCABULARY


def as_arrays(lists: dict[int, list[int]]) -> tuple[Any, Any, Any]:
    """As schedule() takes them."""
    counts = np.array([len(each) for each in lists.values()], np.int32)
    tokens = np.zeros((len(lists), int(counts.max(initial=0))), np.int32)
    for row, each in zip(tokens, lists.values(), strict=True):
        row[: len(each)] = each
    return np.array([*lists], np.int64), counts, tokens


@dataclass(frozen=True)
class Request:
    """What the caller asks for."""

    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    stops: tuple[int, ...] = ()
    num_completions: int = 1
    sample: int = 0
    """Which of them this is."""

    def following(self, output: list[int], count: int) -> list[int]:
        """The next tokens after some output, as if nothing ended it."""
        state = 0
        for token in (*self.prompt, *output):
            state = extend(state, token)
        tokens = []
        for _ in range(count):
            tokens.append(sampled(state, self.sample))
            state = extend(state, tokens[-1])
        return tokens

    def alone(self, length_limit: int) -> tuple[list[int], str]:
        """Output tokens and finish reason by the rules, without a scheduler."""
        state = 0
        for token in self.prompt:
            state = extend(state, token)
        output: list[int] = []
        while True:
            output.append(sampled(state, self.sample))
            state = extend(state, output[-1])
            if output[-1] in self.stops and len(output) > self.min_tokens:
                return output, "stop"
            if len(output) == self.max_tokens or len(self.prompt) + len(output) == length_limit:
                return output, "length"


class Device:
    """Runs plans: pages hold (token, position), slots hold the hash of all tokens before."""

    def __init__(self, options: dict[str, int]) -> None:
        self.page_size = options["page_size"]
        self.pages = np.full((options["num_pages"], self.page_size), -1, np.int64)
        self.slots: list[list[int]] = [[] for _ in range(options["num_slots"])]  # hash after 0, 1, 2, … tokens

    def run(self, plan: StepPlan, samples: list[int]) -> list[list[int]]:
        """Make copies, write every row, then verify; returns the tokens of each sampling sequence.

        samples: which of its request's samples each sequence of the plan is.
        """
        self.pages[0], self.slots[0] = -1, []
        for source, target in plan.page_copies.tolist():
            self.pages[target] = self.pages[source]
        for source, target in plan.slot_copies.tolist():
            self.slots[target] = list(self.slots[source])
            start = int(plan.starts[plan.slots.tolist().index(target)])
            assert len(self.slots[target]) == start + 2, "more than one position would be processed again"
        tables = np.split(plan.block_table, plan.block_table_offsets[1:-1])
        for s, table in enumerate(tables[: plan.num_seqs]):
            rows = slice(plan.query_offsets[s], plan.query_offsets[s + 1])
            positions = plan.positions[rows]
            self.pages[table[positions // self.page_size], positions % self.page_size] = plan.token_ids[rows]
        return [tokens for s in range(plan.num_seqs) if (tokens := self.advance(plan, s, tables[s], samples[s]))]

    def advance(self, plan: StepPlan, s: int, table: Any, sample: int) -> list[int]:
        start, end = int(plan.starts[s]), int(plan.starts[s] + plan.num_tokens[s])
        known = [int(t) for t in self.pages[table].reshape(-1)[:end]]
        states = self.slots[plan.slots[s]][: start + 1] if start > 0 else [0]
        assert len(states) == start + 1, "the slot holds another sequence or another position"
        window = [known[p] if p >= 0 else -1 for p in range(start - HISTORY, start)]
        assert plan.history[s].tolist() == window
        for token in known[start:]:
            states.append(extend(states[-1], token))
        self.slots[plan.slots[s]] = states
        whole = 0
        for token in known:
            whole = extend(whole, token)
        assert whole == states[-1], "the pages hold other tokens than the slot has seen"
        if not plan.samples[s]:
            return []
        drafts = known[end - plan.num_drafts[s] :] if plan.num_drafts[s] else []
        tokens = [sampled(state, sample) for state in states[end - len(drafts) : end + 1]]
        wrong = next((i for i, draft in enumerate(drafts) if tokens[i] != draft), len(drafts))
        return tokens[: wrong + 1]


@dataclass
class Harness:
    """A scheduler, its device, and a mirror of what both should know."""

    options: dict[str, int]
    live: dict[int, Request] = field(default_factory=dict)
    submitted: dict[int, Request] = field(default_factory=dict)
    terminal: dict[int, str] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    plan: StepPlan | None = None
    log: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(**self.options)
        self.device = Device(self.options)
        self.capacity = (self.options["num_pages"] - 1) * self.options["page_size"]
        self.length_limit = min(self.options["max_model_len"], self.capacity)

    def submit(self, request: Request) -> int | None:
        tokens = np.array(request.prompt, np.int32)
        verb: Callable[[], int] = lambda: self.scheduler.submit(  # noqa: E731
            f"r{len(self.submitted)}",
            tokens,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=list(request.stops),
            num_completions=request.num_completions,
        )
        if len(request.prompt) >= self.length_limit:
            with pytest.raises(ValueError, match="the prompt"):
                verb()
            return None
        first = verb()
        for sample in range(request.num_completions):
            handle = first + sample
            self.live[handle] = self.submitted[handle] = replace(request, sample=sample)
            self.computed[handle], self.outputs[handle] = 0, []
        return first

    def end(self, handle: int, reason: str) -> None:
        was_live = self.live.pop(handle, None) is not None
        verb = self.scheduler.cancel(handle) if reason == "abort" else self.scheduler.finish(handle, reason)
        assert verb == was_live
        if was_live:
            self.expect_terminal(handle, reason)

    def expect_terminal(self, handle: int, reason: str) -> None:
        self.live.pop(handle, None)
        assert (handle, reason) in self.take()

    def take(self) -> list[tuple[int, str]]:
        events: list[tuple[int, str]] = self.scheduler.take_finished()
        for handle, reason in events:
            assert handle not in self.terminal, "a second terminal event"
            self.terminal[handle] = reason
        return events

    def drafts(self, right: int, wrong: int) -> dict[int, list[int]]:
        """For every request, decoding or not: so many right tokens, then so many wrong ones."""
        return {
            handle: [*request.following(self.outputs[handle], right), *[VOCABULARY] * wrong]
            for handle, request in self.submitted.items()
        }

    def begin(self, right: int = 0, wrong: int = 0) -> StepPlan:
        self.scheduler.release_deferred()
        preempted = self.scheduler.num_preemptions
        drafts = self.drafts(right, wrong)
        waiting = [handle for handle in self.live if self.scheduler.state(handle) == "waiting"]
        plan = self.scheduler.schedule(as_arrays(drafts))
        for handle in plan.preempted:
            self.computed[handle] = 0
        for handle in self.forked(plan):
            assert handle in waiting, "only a sample that never ran forks"
            self.computed[handle] = len(self.submitted[handle].prompt) - 1
        assert self.scheduler.num_preemptions == preempted + len(plan.preempted)
        assert bool(plan) == bool(self.live), "an idle step while work is ready, or work out of nothing"
        if plan:
            self.check_plan(plan, drafts)
            self.check_sharing(plan)
            self.check_order(plan, waiting)
            self.plan = plan
        self.log.append([getattr(plan, name).tolist() for name in ("handles", "slots", "starts", "block_table")])
        return plan

    def forked(self, plan: StepPlan) -> list[int]:
        """Handles of the sequences that start from a copy of another's state."""
        handle_of = dict(zip(plan.slots.tolist(), plan.handles.tolist(), strict=True))
        return [handle_of[target] for target in plan.slot_copies[:, 1].tolist()]

    def check_sharing(self, plan: StepPlan) -> None:
        """What a row or a copy writes belongs to one sequence."""
        pages = plan.block_table.tolist()
        for s in range(plan.num_seqs):
            table = plan.block_table[plan.block_table_offsets[s] : plan.block_table_offsets[s + 1]]
            rows = plan.positions[plan.query_offsets[s] : plan.query_offsets[s + 1]]
            written = set(table[rows // self.options["page_size"]].tolist())
            assert all(pages.count(page) == 1 for page in written), "a shared page is written to"
        for copies in (plan.page_copies, plan.slot_copies):
            sources, targets = copies[:, 0].tolist(), copies[:, 1].tolist()
            assert len(set(targets)) == len(targets) and not set(sources) & set(targets)
        assert all(pages.count(page) == 1 for page in plan.page_copies[:, 1].tolist())
        assert not (plan.preempted and plan.slot_copies.size), "a step that preempts forks nobody"

    def check_order(self, plan: StepPlan, waiting: list[int]) -> None:
        """Admission overtakes only samples whose prompt is being computed; forks take what was set aside for them."""
        forked = self.forked(plan)
        entered = [handle for handle in plan.handles.tolist() if handle in waiting]
        last = max((handle for handle in entered if handle not in forked), default=0)
        passed = [handle for handle in waiting if handle not in entered and handle < last]
        assert set(passed) <= {handle for handle, reason in plan.skipped if reason == "shared_prompt"}

    def check_plan(self, plan: StepPlan, drafts: dict[int, list[int]]) -> None:
        o, handles = self.options, plan.handles.tolist()
        assert set(handles) <= set(self.live) and len(set(handles)) == len(handles)
        assert not set(plan.preempted) & set(handles)
        assert plan.num_rows == plan.num_tokens.sum() <= o["max_num_batched_tokens"]
        assert self.scheduler.num_running <= min(o["max_num_seqs"], o["num_slots"] - 1)
        assert plan.num_tokens.min() >= 1 and plan.num_tokens[~plan.is_decode].max(initial=0) <= o["max_chunk_tokens"]
        assert plan.is_decode.tolist() == sorted(plan.is_decode.tolist(), reverse=True), "decode rows first"
        decodes = plan.handles[plan.is_decode].tolist()
        assert decodes == sorted(decodes), "decode rows by arrival"
        assert (plan.num_tokens == 1 + plan.num_drafts)[plan.is_decode].all() and plan.samples[plan.is_decode].all()
        assert not plan.num_drafts[~plan.is_decode].any()
        assert plan.num_samples == plan.samples.sum()
        assert len(set(plan.slots.tolist())) == plan.num_seqs and plan.slots.min() >= 1
        assert plan.block_table.min() >= 1
        forked = self.forked(plan)
        for s, handle in enumerate(handles):
            self.check_sequence(plan, s, [*self.live[handle].prompt, *self.outputs[handle]], drafts[handle])
        self.check_drafts(plan, drafts)
        resumed = [
            (-start, handle)
            for handle, start, decode in zip(handles, plan.starts.tolist(), plan.is_decode.tolist(), strict=True)
            if start and not decode and handle not in forked
        ]
        assert resumed == sorted(resumed), "prefills by most computed tokens"
        assert not (plan.preempted and 0 in plan.starts), "a step that preempts admits nobody"
        out_of_budget = any(reason == "token_budget" for _, reason in plan.skipped)
        assert not out_of_budget or plan.num_rows == o["max_num_batched_tokens"], "rows were left unused"
        assert not out_of_budget or not plan.num_drafts.any(), "drafts took rows that somebody lacks"
        running = [h for h in self.live if self.scheduler.state(h) in ("prefilling", "decoding")]
        most = max(running, key=lambda h: (self.computed[h], -h))
        assert plan.num_samples > 0 or most in handles, "neither a token nor the front runner advances"
        named = {handle for handle, _ in plan.skipped}
        assert set(running) == set(handles) | (named & set(running)), "a running request passed over in silence"

    def check_drafts(self, plan: StepPlan, drafts: dict[int, list[int]]) -> None:
        """As many as there is room for, and as evenly as their requests allow."""
        cut = []
        for handle, count in zip(plan.handles[plan.is_decode].tolist(), plan.num_drafts.tolist(), strict=False):
            request = self.live[handle]
            limit = min(len(request.prompt) + request.max_tokens, self.length_limit)
            useful = limit - len(request.prompt) - len(self.outputs[handle]) - 1
            assert count <= min(useful, len(drafts[handle])), "drafted past the end"
            if count < min(useful, len(drafts[handle])):
                cut.append(count)
        if cut and plan.num_rows < self.options["max_num_batched_tokens"]:
            assert self.scheduler.num_free_pages == 0, "a draft was left out for no reason"
        if cut and self.scheduler.num_free_pages > 0:
            assert max(plan.num_drafts) <= min(cut) + 1, "one request's drafts at the cost of another's"

    def check_sequence(self, plan: StepPlan, s: int, known: list[int], drafts: list[int]) -> None:
        start = self.computed[plan.handles[s]]
        end = start + plan.num_tokens[s]
        known = known + drafts[: plan.num_drafts[s]]
        assert plan.starts[s] == start, "a chunk must continue where the last one ended"
        rows = slice(plan.query_offsets[s], plan.query_offsets[s + 1])
        assert plan.positions[rows].tolist() == list(range(start, end))
        assert plan.token_ids[rows].tolist() == known[start:end]
        assert bool(plan.samples[s]) == (end == len(known))
        pages = plan.block_table_offsets[s + 1] - plan.block_table_offsets[s]
        assert pages == -(-end // self.options["page_size"])
        shared = start // self.options["page_size"]
        before = shared if plan.handles[s] in self.forked(plan) else -(-start // self.options["page_size"])
        assert pages - plan.new_pages[s] == before

    def commit(self, failing: int = -1) -> None:
        """Run and commit the outstanding plan; row `failing` of the samples reports a failure."""
        plan, self.plan = self.plan, None
        assert plan is not None
        samples = [self.submitted[handle].sample for handle in plan.handles.tolist()]
        tokens = dict(zip(plan.handles[plan.samples].tolist(), self.device.run(plan, samples), strict=True))
        failed = set(list(tokens)[failing : failing + 1]) & set(self.live) if failing >= 0 else set()
        for handle in failed:
            tokens[handle][-1] = -1
        flat = [token for each in tokens.values() for token in each]
        counts = np.array([len(each) for each in tokens.values()], np.int32)
        plain = (counts == 1).all() and not plan.num_drafts.any()
        report = self.scheduler.commit(plan, np.array(flat, np.int32), None if plain else counts)
        for handle, rows, drafts in zip(
            plan.handles.tolist(), plan.num_tokens.tolist(), plan.num_drafts.tolist(), strict=True
        ):
            self.computed[handle] += rows - drafts
        for handle, token, index in zip(
            report.handles.tolist(), report.tokens.tolist(), report.output_index.tolist(), strict=True
        ):
            assert index == len(self.outputs[handle]) and token == tokens[handle].pop(0)
            self.outputs[handle].append(token)
            self.computed[handle] = len(self.submitted[handle].prompt) + index
        ended = dict(self.take())
        assert all(tokens[h] in ([], [-1]) for h in tokens if h in self.live and h not in ended), "a token was lost"
        for handle, reason in ended.items():
            request = self.live.pop(handle)
            expected = request.alone(self.length_limit)
            is_whole = handle in failed and tokens[handle] == [-1] and reason == "error"
            assert is_whole or (self.outputs[handle], reason) == expected
        assert all(self.scheduler.num_computed(handle) == self.computed[handle] for handle in self.live)

    def step(self, right: int = 0, wrong: int = 0) -> None:
        if self.begin(right, wrong):
            self.commit()
        self.scheduler.audit()

    def drain(self) -> None:
        """Finish everything within the bound that the progress argument in scheduler.h gives."""
        if self.plan is not None:
            self.commit()
        bound = sum(r.max_tokens - len(self.outputs[h]) + 1 for h, r in self.live.items()) * self.length_limit
        while self.live:
            assert bound > 0, "no end in sight"
            bound -= 1
            self.step()
        assert set(self.terminal) == set(self.submitted), "exactly one terminal event per request"
        self.scheduler.release_deferred()
        self.scheduler.audit()
        s = self.scheduler
        assert (s.num_free_pages, s.num_free_slots) == (s.num_pages - 1, s.num_slots - 1), "leaked"
        assert not s.has_unfinished() and s.take_finished() == []
        for handle, output in self.outputs.items():
            whole, _ = self.submitted[handle].alone(self.length_limit)
            assert output == whole[: len(output)], "an output depends on the trace"


TOKENS = st.integers(0, VOCABULARY - 1)
DRAFTS = st.sampled_from([0, 0, 0, 1, 2, 3, 6])
REQUESTS = st.builds(
    Request,
    prompt=st.lists(TOKENS, min_size=1, max_size=22).map(tuple),
    max_tokens=st.integers(1, 14),
    min_tokens=st.integers(0, 5),
    stops=st.lists(TOKENS, max_size=2).map(tuple),
    num_completions=st.sampled_from([1, 1, 1, 2, 3, 6]),
)
OPTIONS = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 2, 4]),
        "num_pages": st.integers(2, 14),
        "num_slots": st.integers(2, 6),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(1, 24),
        "max_model_len": st.integers(2, 40),
        "max_chunk_tokens": st.integers(1, 16),
        "token_history": st.just(HISTORY),
    }
)


class AnyTrace(RuleBasedStateMachine):
    """Submissions, cancellations, failures and steps in any order, with an audit after each."""

    @initialize(options=OPTIONS)
    def start(self, options: dict[str, int]) -> None:
        self.harness = Harness(options)

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=4))
    def submit(self, requests: list[Request]) -> None:
        for request in requests:
            self.harness.submit(request)

    @precondition(lambda self: self.harness.plan is None)
    @rule(right=DRAFTS, wrong=DRAFTS)
    def begin(self, right: int, wrong: int) -> None:
        self.harness.begin(right, wrong)

    @precondition(lambda self: self.harness.plan is not None)
    @rule(failing=st.sampled_from([-1, -1, -1, 0, 1]))
    def commit(self, failing: int) -> None:
        self.harness.commit(failing)

    @precondition(lambda self: self.harness.plan is None)
    @rule(steps=st.integers(1, 8), right=DRAFTS, wrong=DRAFTS)
    def steps(self, steps: int, right: int, wrong: int) -> None:
        for _ in range(steps):
            self.harness.step(right, wrong)

    @precondition(lambda self: self.harness.submitted)
    @rule(choice=st.integers(0, 99), reason=st.sampled_from(["abort", "abort", "error", "stop"]))
    def end(self, choice: int, reason: str) -> None:
        handles = list(self.harness.submitted)
        handle = handles[choice % len(handles)]
        never_ran = handle in self.harness.live and self.harness.scheduler.state(handle) == "waiting"
        if not (never_ran and reason == "stop"):
            self.harness.end(handle, reason)

    @rule(choice=st.integers(0, 99))
    def explain(self, choice: int) -> None:
        live = list(self.harness.live)
        if live:
            handle = live[choice % len(live)]
            text = self.harness.scheduler.explain(handle)
            assert text.startswith(self.harness.scheduler.state(handle))

    @invariant()
    def audit(self) -> None:
        if hasattr(self, "harness"):
            self.harness.scheduler.audit()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()


TestAnyTrace = AnyTrace.TestCase
TestAnyTrace.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def sized(**options: int) -> dict[str, int]:
    return {"page_size": 4, "max_model_len": 60, "max_chunk_tokens": 16, "token_history": HISTORY, **options}


def stream(requests: list[Request], every: int) -> Iterator[Request | None]:
    """Requests with `every` steps between arrivals."""
    for request in requests:
        yield request
        yield from [None] * every


@settings(max_examples=60, deadline=None)
@given(OPTIONS, st.lists(REQUESTS, min_size=1, max_size=12), st.integers(0, 3))
def test_equal_calls_give_equal_plans(options: dict[str, int], requests: list[Request], every: int) -> None:
    logs = []
    for _ in range(2):
        harness = Harness(options)
        for request in stream(requests, every):
            if request is not None:
                harness.submit(request)
            harness.step()
        harness.drain()
        logs.append(harness.log)
    assert logs[0] == logs[1]


def test_a_cache_too_small_for_a_quarter_preempts_and_still_finishes_everything() -> None:
    harness = Harness(sized(num_pages=25, num_slots=65, max_num_seqs=64, max_num_batched_tokens=32))
    random = np.random.default_rng(0)
    for _ in range(200):
        prompt = random.integers(0, VOCABULARY, random.integers(1, 30)).tolist()
        harness.submit(Request(tuple(prompt), int(random.integers(1, 28))))
    harness.drain()
    assert harness.scheduler.num_preemptions > 20
    assert set(harness.terminal.values()) == {"length"}


def test_waiting_is_bounded_while_younger_requests_keep_coming() -> None:
    """First come, first served: a large request is admitted as soon as those before it have ended."""
    harness = Harness(sized(num_pages=13, num_slots=9, max_num_seqs=8, max_num_batched_tokens=16))
    before = [harness.submit(Request((1, 2, 3), 8)) for _ in range(4)]
    large = harness.submit(Request(tuple(range(10)) * 4, 2))
    assert large is not None
    for _ in range(40):
        harness.submit(Request((4, 5), 6))
        harness.step()
        if large in harness.terminal:
            break
    assert harness.terminal[large] == "length"
    assert len(harness.log) <= 8 + 3 + 2, "8 steps of those before it, 3 chunks, 1 decode"
    assert all(handle in harness.terminal for handle in before)


@settings(max_examples=60, deadline=None)
@given(OPTIONS, st.lists(REQUESTS, min_size=1, max_size=12), st.integers(0, 3), st.integers(1, 6))
def test_useless_drafts_change_nobodys_plan(
    options: dict[str, int], requests: list[Request], every: int, wrong: int
) -> None:
    """Neither who runs, nor with which rows, nor who is preempted or passed over."""
    plans = []
    for count in (0, wrong):
        harness, seen = Harness(options), []
        for request in [*stream(requests, every), *[None] * 200]:
            if request is not None:
                harness.submit(request)
            plan = harness.begin(wrong=count)
            if not plan:
                continue
            rows = (plan.num_tokens - plan.num_drafts).tolist()
            seen.append((plan.handles.tolist(), plan.starts.tolist(), rows, plan.preempted, plan.skipped))
            harness.commit()
        harness.drain()
        plans.append(seen)
    assert plans[0] == plans[1]
