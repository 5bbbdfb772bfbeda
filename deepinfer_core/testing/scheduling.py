"""A scheduler in plain Python that follows a policy: what the native one does, countable and easy to read.

It plans rows, pages and slots by number, not by name: enough to see every decision of a policy at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from deepinfer_core.interfaces.scheduler_policy import (
    MAX_WINDOW,
    RequestView,
    SchedulerDecision,
    SchedulerPolicy,
    SchedulerView,
    check_decision,
)


class FirstComeFirstServed:
    """The native scheduler's own policy: in order of arrival; who has computed least gives way first."""

    def decide(self, view: SchedulerView) -> SchedulerDecision:
        """See :class:`deepinfer_core.interfaces.scheduler_policy.SchedulerPolicy`."""
        by_work = sorted(view.running, key=lambda request: (-request.num_computed, request.handle))
        return SchedulerDecision(
            admission=(request.handle for request in view.waiting),
            prefill=(request.handle for request in by_work if not request.is_decoding),
            eviction=(request.handle for request in reversed(by_work)),
        )


@attrs.frozen(kw_only=True)
class Limits:
    """As the native scheduler's options."""

    page_size: int = 128
    num_pages: int
    num_slots: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_chunk_tokens: int

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-tokens // self.page_size)


@attrs.define
class SimulatedRequest:
    """A request in the simulation."""

    handle: int
    num_prompt_tokens: int
    max_length: int
    num_tokens: int
    num_computed: int = 0
    num_pages: int = 0
    num_preemptions: int = 0
    waiting_since: int = 0
    is_decoding: bool = False


@attrs.frozen
class SimulatedStep:
    """rows: ``(handle, first position, tokens)`` of each request in the step, in plan order. preempted: handles.
    finished: handles of the requests that ended with it."""

    rows: tuple[tuple[int, int, int], ...]
    preempted: tuple[int, ...]
    finished: tuple[int, ...]


@attrs.define
class _Plan:
    budget: int
    prefill_budget: int
    eviction: list[int]
    rows: dict[int, int] = attrs.field(factory=dict)
    preempted: list[int] = attrs.field(factory=list)


class Simulation:
    """Requests under a policy. Every output is as long as its request allows."""

    def __init__(self, policy: SchedulerPolicy, limits: Limits) -> None:
        self.policy = policy
        self.limits = limits
        self.waiting: dict[int, SimulatedRequest] = {}
        self.running: dict[int, SimulatedRequest] = {}
        self.num_steps = 0
        self._num_submitted = 0
        self._free_pages = limits.num_pages - 1
        self._free_slots = limits.num_slots - 1
        self._retired: list[SimulatedRequest] = []
        """Ended requests whose pages and slots come back with the next step."""

    # -- requests ---------------------------------------------------------------------------------

    def submit(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Queue a request that the cache can hold; returns its handle."""
        longest = min(self.limits.max_model_len, (self.limits.num_pages - 1) * self.limits.page_size)
        if not 1 <= num_prompt_tokens < longest or max_tokens < 1:
            raise ValueError(f"prompts must have 1..{longest - 1} tokens and an output, got {num_prompt_tokens}")
        self._num_submitted += 1
        length = num_prompt_tokens + min(max_tokens, longest - num_prompt_tokens)
        self.waiting[self._num_submitted] = SimulatedRequest(
            self._num_submitted, num_prompt_tokens, length, num_prompt_tokens, waiting_since=self.num_steps
        )
        return self._num_submitted

    def cancel(self, handle: int) -> None:
        """End a request, in any state."""
        if handle in self.running:
            self._retired.append(self.running.pop(handle))
        self.waiting.pop(handle, None)

    def view(self) -> SchedulerView:
        """What the policy is shown."""
        return SchedulerView(
            step_id=self.num_steps,
            waiting=tuple(self._view(self.waiting[h]) for h in sorted(self.waiting)[:MAX_WINDOW]),
            running=tuple(self._view(self.running[h]) for h in sorted(self.running)),
            num_free_pages=self._free_pages,
            num_pages=self.limits.num_pages - 1,
            page_size=self.limits.page_size,
            max_num_seqs=self._max_running,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            max_chunk_tokens=self.limits.max_chunk_tokens,
        )

    def _view(self, request: SimulatedRequest) -> RequestView:
        return RequestView(
            handle=request.handle,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_tokens - request.num_prompt_tokens,
            num_computed=request.num_computed,
            is_decoding=request.is_decoding,
            max_length=request.max_length,
            num_pages=request.num_pages,
            num_preemptions=request.num_preemptions,
            waiting_steps=0 if request.handle in self.running else self.num_steps - request.waiting_since,
        )

    # -- the step ---------------------------------------------------------------------------------

    def step(self) -> SimulatedStep:
        """Plan a step, compute it, and give every sampling request a token."""
        for request in self._retired:
            self._release(request)
        self._retired.clear()
        view = self.view()
        decision = check_decision(self.policy.decide(view), view)
        plan = self._plan(decision, decision.eviction)
        if not plan.rows and len(self.running) > 1:
            others = FirstComeFirstServed().decide(self.view()).eviction
            again = self._plan(decision, [*decision.eviction, *(h for h in others if h not in decision.eviction)])
            plan.rows, plan.preempted = again.rows, plan.preempted + again.preempted
        self.num_steps += 1
        rows = tuple((handle, self.running[handle].num_computed, count) for handle, count in plan.rows.items())
        return SimulatedStep(rows, tuple(plan.preempted), tuple(self._commit(plan.rows)))

    def _plan(self, decision: SchedulerDecision, eviction: Iterable[int]) -> _Plan:
        budget, most = self.limits.max_num_batched_tokens, decision.max_prefill_tokens
        plan = _Plan(budget, budget if most is None else most, [h for h in eviction if h in self.running])
        self._select_decodes(plan)
        self._select_prefills(plan, decision.prefill)
        self._admit(plan, decision.admission)
        return plan

    def _select_decodes(self, plan: _Plan) -> None:
        for handle in sorted(self.running):
            request = self.running.get(handle)
            if request is not None and request.is_decoding and self._make_room(request, plan):
                self._select(request, 1, plan)

    def _select_prefills(self, plan: _Plan, order: Iterable[int]) -> None:
        for request in self._still_running(order):
            most = min(plan.budget, plan.prefill_budget)
            if most == 0:
                continue
            # With rows in the plan already, waiting for a page costs less than taking one away from somebody.
            if plan.rows and self._computable(request) == 0:
                continue
            if not plan.rows and not self._make_room(request, plan):
                continue
            missing = request.num_tokens - request.num_computed
            count = min(missing, self.limits.max_chunk_tokens, most, self._computable(request))
            self._select(request, count, plan)
            plan.prefill_budget -= count

    def _still_running(self, handles: Iterable[int]) -> Iterator[SimulatedRequest]:
        return (self.running[handle] for handle in handles if handle in self.running)

    def _admit(self, plan: _Plan, order: Iterable[int]) -> None:
        growth = sum(self._expected_growth(request) for request in self.running.values())
        for handle in order:
            request = self.waiting.get(handle)
            most = min(plan.budget, plan.prefill_budget)
            if request is None or plan.preempted or most == 0 or len(self.running) >= self._max_running:
                return
            if not self._free_slots or self.limits.pages_for(request.num_tokens) + growth > self._free_pages:
                return
            self.running[handle] = self.waiting.pop(handle)
            self._free_slots -= 1
            count = min(request.num_tokens, self.limits.max_chunk_tokens, most)
            self._select(request, count, plan)
            plan.prefill_budget -= count
            growth += self._expected_growth(request)

    @property
    def _max_running(self) -> int:
        limits = self.limits
        return min(limits.max_num_seqs, limits.num_slots - 1, limits.max_num_batched_tokens)

    def _computable(self, request: SimulatedRequest) -> int:
        return (request.num_pages + self._free_pages) * self.limits.page_size - request.num_computed

    def _expected_growth(self, request: SimulatedRequest) -> int:
        at_most = self.limits.pages_for(request.max_length - 1)  # the last token is never computed
        wanted = max(self.limits.pages_for(request.num_tokens), min(request.num_pages + 1, at_most))
        return wanted - request.num_pages

    def _make_room(self, request: SimulatedRequest, plan: _Plan) -> bool:
        """Preempt until the request can compute one token. False if that took the request itself, or nobody is left."""
        while self._computable(request) == 0:
            if len(self.running) == 1 or not plan.eviction:
                return False
            victim = self.running[plan.eviction[0]]
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: SimulatedRequest, plan: _Plan) -> None:
        plan.eviction.remove(victim.handle)
        plan.budget += plan.rows.pop(victim.handle, 0)
        plan.preempted.append(victim.handle)
        self._release(self.running.pop(victim.handle))
        victim.num_computed, victim.is_decoding, victim.waiting_since = 0, False, self.num_steps
        victim.num_preemptions += 1
        self.waiting[victim.handle] = victim

    def _release(self, request: SimulatedRequest) -> None:
        self._free_pages += request.num_pages
        self._free_slots += 1
        request.num_pages = 0

    def _select(self, request: SimulatedRequest, count: int, plan: _Plan) -> None:
        pages = max(request.num_pages, self.limits.pages_for(request.num_computed + count))
        self._free_pages -= pages - request.num_pages
        request.num_pages = pages
        plan.rows[request.handle] = count
        plan.budget -= count
        assert self._free_pages >= 0 and plan.budget >= 0, "a plan keeps to pages and rows"

    def _commit(self, rows: dict[int, int]) -> Iterator[int]:
        for handle, count in rows.items():
            request = self.running[handle]
            request.num_computed += count
            if request.num_computed < request.num_tokens:
                continue
            request.is_decoding = True
            request.num_tokens += 1
            if request.num_tokens == request.max_length:
                self._retired.append(self.running.pop(handle))
                yield handle
