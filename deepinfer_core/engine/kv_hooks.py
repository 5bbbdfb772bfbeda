"""The hooks that move keys, values and state elsewhere, called around a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from deepinfer_core.hookspecs import EngineView
from deepinfer_core.interfaces.cache import PAGE_TOKENS
from deepinfer_core.interfaces.kv_connector import KvCaches

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.plugins.hooks import Hooks
    from deepinfer_core.worker.worker import Worker


def engine_view(worker: Worker) -> EngineView:
    """What ``init_pd_split`` sees of the engine whose model and caches ``worker`` has."""
    caches = worker.runner.caches
    pages, slots = (
        MappingProxyType({buffer.name: caches.tensors[buffer.name] for buffer in buffers})
        for buffers in (caches.layout.pages, caches.layout.slots)
    )
    return EngineView(
        caches=KvCaches(pages, slots),
        layout=caches.layout,
        page_tokens=PAGE_TOKENS,
        num_pages=caches.num_pages,
        num_slots=caches.num_slots,
        max_model_len=worker.max_model_len,
        device=worker.backend.device,
    )


class KvHooks:
    """Bound once per engine; where nobody implements any of the hooks, a step costs one test.

    The hooks know a request by its id and its first completion; the other completions, whose id here is None, are kept
    from them.
    """

    def __init__(self, hooks: Hooks, worker: Worker) -> None:
        self._hooks = hooks
        self._worker = worker
        names = ("should_copy_state", "save_kvcache", "pe_prepare_save_kvcache", "pe_save_kvcache")
        self.is_active = any(getattr(hooks, name) is not None for name in (*names, "send_processed_prompts"))
        """Whether the methods below have anything to call."""
        self._states: dict[str, Mapping[str, Tensor]] = {}

    def executed(self, plan: StepPlan, request_ids: Sequence[str | None]) -> None:
        """The forward and sampling are done, nothing is committed. ``request_ids``: one per sequence of the plan."""
        decoding, prefilling = _by_phase(plan, request_ids)
        choose, prepare = self._hooks.should_copy_state, self._hooks.pe_prepare_save_kvcache
        self._states = {}
        if choose is not None:
            slots = dict(zip(request_ids, plan.slots.tolist(), strict=True))
            for request_id in decoding:
                if choose(request_id):
                    self._states[request_id] = self._worker.runner.caches.copy_slot(slots[request_id])
        if prepare is not None and prefilling:
            prepare(prefilling)

    def committed(
        self,
        plan: StepPlan,
        request_ids: Sequence[str | None],
        finished: Sequence[str],
        prompts: Sequence[RequestOutput],
    ) -> None:
        """The step's tokens are applied; pages and slots of ``finished`` requests are still held.

        prompts: outputs of the requests whose prompt this step completed.
        """
        decoding, prefilling = _by_phase(plan, request_ids)
        hooks = self._hooks
        if hooks.pe_save_kvcache is not None and prefilling:
            hooks.pe_save_kvcache(prefilling, finished)
        if hooks.save_kvcache is not None and decoding:
            hooks.save_kvcache(decoding, finished, self._states)
        if hooks.send_processed_prompts is not None and prompts:
            hooks.send_processed_prompts(prompts)


def _by_phase(plan: StepPlan, request_ids: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Ids of the decoding and of the prefilling requests."""
    decoding: list[str] = []
    prefilling: list[str] = []
    for request_id, decodes in zip(request_ids, plan.is_decode.tolist(), strict=True):
        if request_id is not None:
            (decoding if decodes else prefilling).append(request_id)
    return decoding, prefilling
