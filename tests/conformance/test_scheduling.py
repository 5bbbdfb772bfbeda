"""The simulation that policies are tried in plans as the native scheduler does, step for step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core._C import Scheduler
from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.scheduler_policy import RequestView, SchedulerDecision, SchedulerView, check_decision
from deepinfer_core.testing import SchedulerPolicySuite
from deepinfer_core.testing.scheduling import FirstComeFirstServed, Limits, Simulation


class TestFirstComeFirstServed(SchedulerPolicySuite):
    @pytest.fixture
    def component(self) -> Any:
        return FirstComeFirstServed()


@st.composite
def limits(draw: Callable[..., Any]) -> Limits:
    """Mostly more requests than pages, so that they take them from each other."""
    return Limits(
        page_size=draw(st.integers(1, 4)),
        num_pages=draw(st.integers(4, 16)),
        num_slots=draw(st.integers(3, 7)),
        max_num_seqs=draw(st.integers(2, 6)),
        max_num_batched_tokens=draw(st.integers(2, 30)),
        max_model_len=draw(st.integers(8, 40)),
        max_chunk_tokens=draw(st.integers(1, 12)),
    )


requests = st.tuples(st.integers(1, 12), st.integers(1, 30))
#: Requests at the start; then, per step, those that arrive before it, and whether the oldest running one is aborted.
traces = st.tuples(
    st.lists(requests, min_size=3, max_size=8),
    st.lists(st.tuples(st.lists(requests, max_size=2), st.booleans()), max_size=12),
)


@given(limits(), traces)
def test_it_plans_as_the_native_scheduler(options: Limits, trace: Any) -> None:
    native, simulation = Scheduler(**attrs.asdict(options)), Simulation(FirstComeFirstServed(), options)
    start, later = trace
    for arrivals, aborts in [(start, False), *later, *[([], False)] * 1000]:
        for prompt, output in arrivals:
            try:
                simulation.submit(prompt, output)
            except ValueError:
                continue
            native.submit(str(simulation._num_submitted), np.zeros(prompt, np.int32), max_tokens=output)
        if aborts and simulation.running:
            victim = min(simulation.running)
            simulation.cancel(victim)
            native.cancel(victim)
        native.release_deferred()
        plan = native.schedule()
        step = simulation.step()
        planned = zip(plan.handles.tolist(), plan.starts.tolist(), plan.num_tokens.tolist(), strict=True)
        assert step.rows == tuple(planned)
        assert list(step.preempted) == plan.preempted
        if plan:
            native.commit(plan, np.ones(plan.num_samples, np.int32))
        assert sorted(step.finished) == sorted(handle for handle, why in native.take_finished() if why == "length")
        if not (simulation.running or simulation.waiting):
            break
    assert not simulation.running and not simulation.waiting


VIEW = SchedulerView(
    1, (RequestView(4, 9), RequestView(5, 9)), (RequestView(1, 5, 1, 5, True), RequestView(2, 5)), 3, 9, 4, 8, 64, 16
)


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (None, "must return a SchedulerDecision, got NoneType"),
        (SchedulerDecision((1,), (2,), ()), r"admission must be handles of waiting requests \(\[4, 5\]\), got \[1\]"),
        (SchedulerDecision((4, 4), (2,), ()), r"admission must name each request once, got \[4, 4\]"),
        (SchedulerDecision((4,), (), ()), r"prefill must order every request that prefills, \[2\] are missing"),
        (SchedulerDecision((4,), (1, 2), ()), r"prefill must be handles of requests that prefill \(\[2\]\), got \[1\]"),
        (SchedulerDecision((4,), (2,), (True,)), "eviction must be handles of running requests"),
        (SchedulerDecision((4,), (2,), (), -1), "max_prefill_tokens must be None or an integer of at least 0, got -1"),
    ],
)
def test_illegal_decisions_are_refused(decision: Any, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        check_decision(decision, VIEW)


def test_a_policy_must_let_work_go_on() -> None:
    nothing_runs = attrs.evolve(VIEW, running=())
    with pytest.raises(PluginError, match="admission must name a request when nothing runs"):
        check_decision(SchedulerDecision((), (), ()), nothing_runs)
    nobody_decodes = attrs.evolve(VIEW, running=VIEW.running[1:])
    with pytest.raises(PluginError, match="max_prefill_tokens must be at least 1 when nothing decodes"):
        check_decision(SchedulerDecision((), (2,), (), 0), nobody_decodes)


def test_who_is_left_out_of_the_eviction_keeps_its_pages_unless_nobody_could_run() -> None:
    class Sparing(FirstComeFirstServed):
        spared: tuple[int, ...] = ()

        def decide(self, view: SchedulerView) -> SchedulerDecision:
            decision = super().decide(view)
            kept = tuple(h for h in decision.eviction if h not in self.spared)
            return attrs.evolve(decision, eviction=kept)

    def preempted(*spared: int) -> set[int]:
        policy = Sparing()
        policy.spared = spared
        simulation = Simulation(policy, options)
        for _ in range(3):
            simulation.submit(4, 12)
        found: set[int] = set()
        while simulation.running or simulation.waiting:
            found |= set(simulation.step().preempted)
        return found

    options = Limits(
        page_size=2, num_pages=10, num_slots=4, max_num_seqs=3, max_num_batched_tokens=32, max_model_len=16,
        max_chunk_tokens=8,
    )  # fmt: skip
    assert 3 in preempted()
    assert 3 not in preempted(3)
    assert preempted(1, 2, 3), "all spared and all in need: somebody gives way"
