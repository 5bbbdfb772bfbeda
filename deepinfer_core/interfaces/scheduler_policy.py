"""The ``scheduler_policy`` seam: who is admitted, who prefills first, and who gives way when pages run out.

The scheduler owns queues, pages and slots; a policy sees frozen views and returns a decision. It is asked once per
step, and never in an engine without one: the scheduler's own policy is native code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import attrs

from deepinfer_core.errors import PluginError

#: Waiting requests that a policy is shown at most, those that arrived first.
MAX_WINDOW = 256


@attrs.frozen(slots=True)
class RequestView:
    """One request as the scheduler sees it at the start of a step.

    handle: its number, ascending in order of arrival.
    num_prompt_tokens, num_output_tokens: tokens it has.
    num_computed: tokens whose KV is in the cache; 0 while it waits.
    is_decoding: whether it has all of its KV but the newest token's, and gets one row a step; else it prefills, also
        when it computes again what a preemption took.
    max_length: tokens, prompt and output, at which it ends at the latest.
    num_pages: pages it holds.
    num_preemptions: how often it lost its pages.
    waiting_steps: steps since it arrived, or since it was last preempted; 0 while it runs.
    """

    handle: int
    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_computed: int = 0
    is_decoding: bool = False
    max_length: int = 0
    num_pages: int = 0
    num_preemptions: int = 0
    waiting_steps: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens, prompt and output."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_missing(self) -> int:
        """Tokens still to be computed."""
        return self.num_tokens - self.num_computed


@attrs.frozen(slots=True)
class SchedulerView:
    """What a policy decides on.

    waiting: requests without pages, in order of arrival, at most :data:`MAX_WINDOW`.
    running: requests with a slot, in order of arrival.
    num_free_pages, num_pages: of ``page_size`` tokens each.
    max_num_seqs: requests that may run at once.
    max_num_batched_tokens: rows of one step.
    max_chunk_tokens: prefill rows of one request in one step.
    """

    step_id: int
    waiting: tuple[RequestView, ...]
    running: tuple[RequestView, ...]
    num_free_pages: int
    num_pages: int
    page_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_chunk_tokens: int


def _handles(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@attrs.frozen(slots=True)
class SchedulerDecision:
    """What a policy wants of one step, in handles. The scheduler keeps to it as far as rows and pages go.

    admission: waiting requests in the order in which they are admitted, until one does not fit. Those left out
        wait for this step.
    prefill: the running requests that do not decode, each once, in the order in which they get rows.
    eviction: running requests in the order in which they lose their pages, if a running one needs some and none is
        free. Those left out keep theirs, and the one in need waits, unless nobody at all could run then.
    max_prefill_tokens: rows of this step that may go to prompts; None: all that decoding leaves over.
    """

    admission: tuple[int, ...] = attrs.field(converter=_handles)
    prefill: tuple[int, ...] = attrs.field(converter=_handles)
    eviction: tuple[int, ...] = attrs.field(converter=_handles)
    max_prefill_tokens: int | None = None


@runtime_checkable
class SchedulerPolicy(Protocol):
    """A component of the seam. Called on the driver, from one thread."""

    def decide(self, view: SchedulerView) -> SchedulerDecision:
        """The decision for one step. It must depend on the views it was given only, the present and earlier ones.

        What :func:`check_decision` refuses, and an exception, stops the engine with the plugin's name. A policy must
        let work go on: with nothing running it admits somebody, and may not hold prefills back for ever.
        """
        ...


def check_decision(decision: object, view: SchedulerView) -> SchedulerDecision:
    """The decision, if it is one for ``view``. Raises PluginError with what came and what was expected."""
    if not isinstance(decision, SchedulerDecision):
        raise PluginError(f"decide must return a SchedulerDecision, got {type(decision).__name__}")
    running = {request.handle for request in view.running}
    prefilling = {request.handle for request in view.running if not request.is_decoding}
    waiting = {request.handle for request in view.waiting}
    _check_part("admission", decision.admission, waiting, "waiting requests")
    _check_part("eviction", decision.eviction, running, "running requests")
    _check_part("prefill", decision.prefill, prefilling, "requests that prefill")
    if len(decision.prefill) < len(prefilling):
        missing = sorted(prefilling - set(decision.prefill))
        raise PluginError(f"prefill must order every request that prefills, {missing} are missing")
    if waiting and not running and not decision.admission:
        raise PluginError(f"admission must name a request when nothing runs, waiting are {sorted(waiting)}")
    limit = decision.max_prefill_tokens
    if limit is not None and (type(limit) is not int or limit < 0):
        raise PluginError(f"max_prefill_tokens must be None or an integer of at least 0, got {limit!r}")
    if limit == 0 and len(prefilling) == len(running):
        raise PluginError("max_prefill_tokens must be at least 1 when nothing decodes, got 0")
    return decision


def _check_part(name: str, handles: tuple[int, ...], known: set[int], what: str) -> None:
    unknown = [handle for handle in handles if type(handle) is not int or handle not in known]
    if unknown:
        raise PluginError(f"{name} must be handles of {what} ({sorted(known)}), got {unknown}")
    if len(set(handles)) < len(handles):
        raise PluginError(f"{name} must name each request once, got {list(handles)}")
