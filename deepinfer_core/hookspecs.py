"""The lifecycle hooks: what a plugin may observe or do at fixed points of the engine.

Mark a function of a module, or a method of an object, with :data:`hookimpl`; name its parameters as here
(any subset of them)::

    from deepinfer_core.hookspecs import hookimpl

    class Observer:
        @hookimpl
        def on_request_finished(self, output):
            print(output.request_id)

Unless a hook says otherwise it is called on the engine's driver thread, return values are ignored, and an
exception stops the engine with the plugin's name attached; a plugin that only observes may be set to ``warn``
(``plugin_config``, key ``on_error``), and its exceptions are logged. Arguments are copies or frozen: changing them
changes nothing for anybody else. Do not keep them beyond the call unless the hook says so.

Hooks see requests, not their samples: of a request with ``n`` > 1, outputs hold all completions, and where a hook is
about pages, slots or keys and values, those of the first sample stand for the request. The other samples start from
its prompt and are not shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pluggy
from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.cache import CacheLayout
    from deepinfer_core.interfaces.kv_connector import KvCaches
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.sampling_params import SamplingParams

PROJECT: Final = "deepinfer"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@frozen(kw_only=True)
class AcceptedRequest:
    """A request as ``on_request_added`` sees it.

    prompt: None where token ids were given.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams


@frozen(kw_only=True, eq=False)
class EngineView:
    """The engine as ``init_pd_split`` sees it: where keys, values and state are.

    caches: the memory itself, not copies of it.
    layout: shape and dtype of one page or one slot of each buffer.
    page_tokens: tokens per page.
    num_pages, num_slots: how many of each, the null ones (number 0) included.
    max_model_len: longest sequence in tokens.
    device: where the caches are.
    """

    caches: KvCaches
    layout: CacheLayout
    page_tokens: int
    num_pages: int
    num_slots: int
    max_model_len: int
    device: torch.device


class HookSpecs:
    """Every hook, in the order in which a request meets them."""

    @hookspec
    def init_pd_split(self, engine: EngineView) -> None:
        """The engine stands; keys and values can be moved from or to it.

        When: once, after the caches are allocated and before the first step. Arguments: ``engine``, an
        :class:`EngineView`, may be kept, and so may the tensors in it; what the engine has not handed over in
        them is not to be written.
        For: registering KV memory with a transfer engine or a store.
        """

    @hookspec
    def on_request_added(self, request: AcceptedRequest) -> None:
        """A request was accepted.

        When: after its checks and before it can be scheduled; never for a refused one.
        Arguments: ``request``, an :class:`AcceptedRequest`, may be kept. For: tracing, accounting.
        """

    @hookspec
    def post_schedule(self, plan: StepPlan) -> None:
        """The next step is planned.

        When: each step, between ``scheduler.schedule()`` and the forward pass; not for an empty plan.
        Arguments: ``plan``, the immutable StepPlan; owns its memory and may be kept.
        For: prefetching, tracing.
        """

    @hookspec(firstresult=True)
    def should_copy_state(self, request_id: str) -> bool | None:
        """Whether to copy this request's state slot, as it is after the step, for ``save_kvcache``.

        When: each step, per decoding request, after sampling and before the token is applied.
        Arguments: ``request_id``. Returns True or False, or None to leave it to the next plugin; the first
        answer counts. For: choosing what a KV store keeps.
        """

    @hookspec
    def save_kvcache(
        self, scheduled: Sequence[str], finished: Sequence[str], states: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Store KV of decoding requests.

        When: each step with decode rows, after its tokens are applied and before what the finished requests
        held can be used again. Arguments: ``scheduled``, ids of the requests that decoded in this step;
        ``finished``, ids of all that ended in it; ``states``, by request id the slot copies that
        ``should_copy_state`` asked for, tensors by buffer name, may be kept. For: writing KV to a store.
        """

    @hookspec
    def pe_prepare_save_kvcache(self, scheduled: Sequence[str]) -> None:
        """Stage the KV of prefilled requests for saving.

        When: each step with prefill rows, after sampling and before its tokens are applied.
        Arguments: ``scheduled``, ids of the requests whose prompt the step computed, in whole or in part.
        For: choosing pages and reserving buffers.
        """

    @hookspec
    def pe_save_kvcache(self, scheduled: Sequence[str], finished: Sequence[str]) -> None:
        """Save the KV that ``pe_prepare_save_kvcache`` staged.

        When: in the same step, after its tokens are applied. Arguments: ``scheduled``, as there;
        ``finished``, ids of all that ended in it. For: the copy itself.
        """

    @hookspec
    def finalize_seq(self, request_id: str) -> None:
        """A request's pages and slot are about to be given back.

        When: once per request, when its first sample has ended, however it ended, and before the scheduler reuses
        what that held. Arguments: ``request_id``. For: ending transfers that still read its pages.
        """

    @hookspec
    def process_output(self, outputs: Sequence[RequestOutput]) -> None:
        """New output is ready.

        When: each step that produced any, before the caller of the engine sees it.
        Arguments: ``outputs``, the step's RequestOutputs. For: streaming to another place.
        """

    @hookspec
    def on_request_finished(self, output: RequestOutput) -> None:
        """A request ended: exactly once per accepted request, whatever the reason.

        When: after ``process_output`` of its last step. Arguments: ``output``, its final RequestOutput,
        may be kept. For: logging, accounting.
        """

    @hookspec
    def send_processed_prompts(self, outputs: Sequence[RequestOutput]) -> None:
        """Prompts are computed and ready to be handed over.

        When: each step that completed a prompt, after ``pe_save_kvcache``. Arguments: ``outputs``, the
        RequestOutput of each such request so far, its first token included, may be kept.
        For: passing them to a decode engine.
        """

    @hookspec
    def post_process_model_outputs(self, outputs: Sequence[RequestOutput]) -> None:
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

        When: a request failed (``request_id``; once, at its end, if any of its samples did) or a step did (None),
        before the error is reported or raised. Arguments: ``error``, the exception. For: alerting. It cannot be
        suppressed here.
        """


#: Hooks whose results are joined to one mapping.
MERGED_HOOKS: Final = frozenset({"build_extra_metrics_log"})

HOOK_NAMES: Final = tuple(name for name in vars(HookSpecs) if not name.startswith("_"))
