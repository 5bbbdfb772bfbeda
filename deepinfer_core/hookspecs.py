"""The lifecycle hooks: what a plugin may observe or do at fixed points of the engine.

Mark a function of a module, or a method of an object, with :data:`hookimpl`; name its parameters as here
(any subset of them)::

    from deepinfer_core.hookspecs import hookimpl

    class Observer:
        @hookimpl
        def on_request_finished(self, output):
            print(output.request_id)

Unless a hook says otherwise it is called on the engine's driver thread, return values are ignored, and an
exception stops the engine with the plugin's name attached. Arguments are the engine's own objects: read
them, do not change them, and do not keep them beyond the call unless the hook says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROJECT: Final = "deepinfer"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """Every hook, in the order in which a request meets them."""

    @hookspec
    def init_pd_split(self, engine: Any) -> None:
        """Prepare for prefill and decode in separate engines.

        When: once, after the caches are allocated and before the first step; only in an engine that does
        one of the two. Arguments: ``engine``, the LLMEngine, may be kept.
        For: registering KV memory with a transfer engine.
        """

    @hookspec
    def on_request_added(self, request: Any) -> None:
        """A request was accepted.

        When: after its checks and before it can be scheduled; never for a refused one.
        Arguments: ``request``, the engine's record of it (``request_id``, ``prompt``,
        ``prompt_token_ids``, ``params``). For: tracing, accounting.
        """

    @hookspec
    def post_schedule(self, plan: Any) -> None:
        """The next step is planned.

        When: each step, between ``scheduler.schedule()`` and the forward pass; not for an empty plan.
        Arguments: ``plan``, the immutable StepPlan; owns its memory and may be kept.
        For: prefetching, tracing.
        """

    @hookspec(firstresult=True)
    def should_copy_state(self, request_id: str) -> bool | None:
        """Whether this request's state slot is to be snapshot after the step.

        When: each decode step, per scheduled or finished request, only where snapshots are kept.
        Arguments: ``request_id``. Returns True or False, or None to leave it to the next plugin; the first
        answer counts. For: choosing what a KV store keeps.
        """

    @hookspec
    def save_kvcache(self, scheduled: Sequence[str], finished: Sequence[str]) -> None:
        """Store KV of decoding requests.

        When: each decode step, after sampling is launched and the snapshots of ``should_copy_state`` are
        complete; only where a KV store is connected. Arguments: ids of the requests scheduled in this
        step, and of those that finished in it. For: writing KV to a store behind the device's work.
        """

    @hookspec
    def pe_prepare_save_kvcache(self, scheduled: Sequence[str], finished: Sequence[str]) -> None:
        """Stage the KV of prefilled requests for saving.

        When: each prefill step, after sampling is launched, while the device still works; only in a
        prefill engine. Arguments: as ``save_kvcache``. For: choosing pages and reserving buffers.
        """

    @hookspec
    def pe_save_kvcache(self, scheduled: Sequence[str], finished: Sequence[str]) -> None:
        """Save the KV that ``pe_prepare_save_kvcache`` staged.

        When: at the start of output processing of the same step, once the device is done; only in a prefill
        engine. Arguments: as ``save_kvcache``. For: the copy itself.
        """

    @hookspec
    def finalize_seq(self, request_id: str) -> None:
        """A request's pages and slot are about to be given back.

        When: once per request that ended, however it ended, before the scheduler reuses what it held.
        Arguments: ``request_id``. For: ending transfers that still read its pages.
        """

    @hookspec
    def process_output(self, outputs: Sequence[Any]) -> None:
        """New output is ready.

        When: each step that produced any, before the caller of the engine sees it.
        Arguments: ``outputs``, the step's RequestOutputs. For: streaming to another place.
        """

    @hookspec
    def on_request_finished(self, output: Any) -> None:
        """A request ended: exactly once per accepted request, whatever the reason.

        When: after ``process_output`` of its last step. Arguments: ``output``, its final RequestOutput,
        may be kept. For: logging, accounting.
        """

    @hookspec
    def send_processed_prompts(self, outputs: Sequence[Any]) -> None:
        """Prefilled prompts are ready to be handed over.

        When: at the end of output processing; only in a prefill engine.
        Arguments: ``outputs``, RequestOutputs of the prompts. For: passing them to a decode engine.
        """

    @hookspec
    def post_process_model_outputs(self, outputs: Sequence[Any]) -> None:
        """A step is fully processed.

        When: each step, after its outputs are built and reported and before the statistics are logged.
        Arguments: ``outputs``, the step's RequestOutputs, possibly none. For: counters.
        """

    @hookspec
    def build_extra_metrics_log(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add to a line of the statistics log.

        When: as the statistics are logged, every few seconds. Arguments: ``metrics``, what the line has so
        far. Returns a mapping of further names to numbers or strings; of equal names the last plugin's counts.
        For: a plugin's own metrics.
        """
        return {}

    @hookspec
    def on_error(self, request_id: str | None, error: BaseException) -> None:
        """Something failed.

        When: a request failed (``request_id``) or a step did (None), before the error is reported or
        raised. Arguments: ``error``, the exception. For: alerting. It cannot be suppressed here.
        """


#: Hooks whose results are joined to one mapping.
MERGED_HOOKS: Final = frozenset({"build_extra_metrics_log"})

HOOK_NAMES: Final = tuple(name for name in vars(HookSpecs) if not name.startswith("_"))
