"""One rank: the backend, the loaded model and its caches."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.cache import PAGE_TOKENS, CacheLayout
from deepinfer_core.interfaces.model import ModelContext
from deepinfer_core.model_loader import CheckpointIndex, HFConfig, load_weights
from deepinfer_core.model_loader.tied import warn_if_different
from deepinfer_core.sampling.checked import checked
from deepinfer_core.sampling.processors import with_processors
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.device_queue import DeviceQueue, InlineQueue, Pending, ThreadQueue
from deepinfer_core.worker.host_pool import new_host_pool
from deepinfer_core.worker.kernels import model_kernels
from deepinfer_core.worker.model_runner import ModelRunner, PreparedStep, StepResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from deepinfer_core._C import HostPool, StepPlan
    from deepinfer_core.interfaces.model import ArchitectureConfig, Model
    from deepinfer_core.interfaces.prompt_rows import PromptRows
    from deepinfer_core.interfaces.sampler import SamplingBatch
    from deepinfer_core.interfaces.speculator import Drafter, Pick, Speculator
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_core.tokenizer import Tokenizer
    from deepinfer_core.trace import ChromeTrace
    from deepinfer_core.worker.model_runner import Decoding

logger = logging.getLogger(__name__)


class StepRun:
    """A step on its way: its forward is begun at once, its tokens are drawn when it is known by what.

    So the device can compute the layers of a step while the host still accounts for the one before. What fails at
    either stage is raised by :meth:`wait`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        queue: DeviceQueue,
        host_pool: HostPool,
        plan: StepPlan,
        trace: ChromeTrace | None = None,
    ) -> None:
        self._runner = runner
        self._host_pool = host_pool
        self._trace = trace
        self._queue = queue
        self.seconds = 0.0
        """What the device spent on it; complete after :meth:`wait`."""
        self._prepared: PreparedStep = runner.prepare(plan)
        self._forward: Pending[Tensor] = queue.submit(self._run_forward)
        self._result: Pending[StepResult] | None = None

    def draw(self, batch: SamplingBatch, prompt: PromptRows | None = None) -> None:
        """Draw a token for each row that yields one, and score prompt rows, once the layers are computed."""
        self._result = self._queue.submit(partial(self._run_draw, batch, prompt))

    def wait(self) -> StepResult:
        """What came of it, when it is there."""
        assert self._result is not None, "draw() comes before wait()"
        return self._result.wait()

    def _run_forward(self) -> Tensor:
        begin = time.monotonic()
        with self._host_pool:
            hidden = self._runner.forward(self._prepared)
        self._spent("forward", begin)
        return hidden

    def _run_draw(self, batch: SamplingBatch, prompt: PromptRows | None) -> StepResult:
        hidden, begin = self._forward.wait(), time.monotonic()
        with self._host_pool:
            result = self._runner.sample(self._prepared, hidden, batch, prompt)
        self._spent("draw", begin)
        return result

    def _spent(self, work: str, begin: float) -> None:
        end = time.monotonic()
        self.seconds += end - begin
        if self._trace is not None:
            self._trace.add("device", work, begin, end)


_LOADED_ELSEWHERE = "shared out between the model and its drafter"


class Worker:
    """Loads the model and sizes its caches on construction, then runs steps.

    Raises ConfigError, CheckpointError or PluginError with nothing left running.
    """

    def __init__(
        self, config: EngineConfig, manager: PluginManager, hf_config: HFConfig, tokenizer: Tokenizer | None
    ) -> None:
        self.config = config
        self.backend = manager.component("backend")
        self.backend.configure(config.parallel.num_threads)
        self.host_pool = new_host_pool(self.backend, config.parallel.num_threads)
        """The engine's threads, which whoever calls its ops and its sampler has entered."""
        # Checked before the weights are read: a bad config or an unreadable index fails in milliseconds.
        index = CheckpointIndex.open(hf_config.path)
        architecture = manager.model_for(hf_config.architecture)
        self.arch_config: ArchitectureConfig = architecture.translate_config(hf_config.config)
        self._speculator: Speculator | None = next(iter(manager.chain("speculator")), None)
        self.num_drafts = config.speculation.resolve_max_drafts(self._available_drafts())
        """Drafts that a step may verify for each sequence; 0: there is no drafter, or it is off."""
        context = ModelContext(
            kernels=model_kernels(manager, self.backend),
            # Rejected drafts; and completions that fork process their prompt's last token again.
            rollback=1 + self.num_drafts,
            tokenizer=tokenizer,
            device=self.backend.device,
        )
        model = architecture.build(self.arch_config, context)
        drafter = self._build_drafter(model, context)
        self._load(model, drafter, index)
        caches = self._allocate(_joint_layout(model, drafter))
        self.max_model_len = config.model.resolve_max_model_len(
            self.arch_config.max_position_embeddings, (caches.num_pages - 1) * PAGE_TOKENS
        )
        """Longest sequence in tokens that the model and the cache allow."""
        sampler = checked(manager.component("sampler"))
        self.sampler = with_processors(sampler, manager.named("logits_processor"))
        self.runner = ModelRunner(model, caches, self.sampler, self.backend.device, drafter)
        self.overlaps = config.scheduler.overlap == "on" or (
            config.scheduler.overlap == "auto" and self.backend.device.type != "cpu"
        )
        """Whether steps are planned while others are computed. A CPU that computes has no time to plan meanwhile."""
        self.trace: ChromeTrace | None = None
        """Gets what the device does as spans; None: nobody does."""
        self.queue: DeviceQueue = ThreadQueue("deepinfer-device") if self.overlaps else InlineQueue()

    def launch(self, plan: StepPlan) -> StepRun:
        """Begin a step, behind all that were begun before."""
        return StepRun(self.runner, self.queue, self.host_pool, plan, self.trace)

    def propose(
        self, sequences: Decoding, histories: Sequence[NDArray[np.int32]], num_drafts: int, pick: Pick
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See :meth:`ModelRunner.propose`. Raises ValueError for ids that the vocabulary does not have as well."""

        def work() -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            with self.host_pool:
                return self.runner.propose(sequences, histories, num_drafts, pick)

        token_ids, confidences = self.queue.submit(work).wait()
        vocab_size = self.arch_config.vocab_size
        if token_ids.size and not -1 <= token_ids.min() <= token_ids.max() < vocab_size:
            raise ValueError(
                f"drafts must be in 0..{vocab_size - 1} (the vocabulary) or -1, got {token_ids.min()} to "
                f"{token_ids.max()}"
            )
        return token_ids, confidences

    def close(self) -> None:
        """Finish what was begun, end the engine's threads, and let go of the model and its caches."""
        self.queue.close()
        self.host_pool.close()
        del self.runner

    def _available_drafts(self) -> int:
        return 0 if self._speculator is None else self._speculator.num_drafts(self.arch_config)

    def _build_drafter(self, model: Model, context: ModelContext) -> Drafter | None:
        if self._speculator is None or not self.num_drafts:
            return None
        return self._speculator.build(self.arch_config, model, context)

    def _load(self, model: Model, drafter: Drafter | None, index: CheckpointIndex) -> None:
        for name, used_instead in model.tied_tensors().items():
            warn_if_different(index, name, used_instead)
        if drafter is None:
            self._load_part(model, index, frozenset())
            return
        its, others = ({spec.name for spec in part.weight_specs()} for part in (model, drafter))
        self._load_part(model, index, others)
        if others:
            self._load_part(drafter, index, its)

    def _load_part(self, part: Model | Drafter, index: CheckpointIndex, others: AbstractSet[str]) -> None:
        """Load the model or its drafter; ``others`` are tensors that the other one loads."""
        load_weights(
            part.module,
            index,
            part.weight_specs(),
            ignore=lambda name: _LOADED_ELSEWHERE if name in others else part.unused_tensor(name),
            device=self.backend.device,
            use_tqdm=self.config.use_tqdm,
            watchdog_seconds=self.config.model.load_watchdog_seconds,
        )

    def _allocate(self, layout: CacheLayout) -> CacheEngine:
        num_seqs = self.config.scheduler.max_num_seqs
        longest = self.config.model.max_model_len or self.arch_config.max_position_embeddings
        slot_bytes = (num_seqs + 1) * layout.bytes_per_slot
        free = self.backend.memory_info()[0] - slot_bytes
        if free <= 0:
            raise ConfigError(
                f"state for max_num_seqs {num_seqs} takes {slot_bytes} bytes but only {free + slot_bytes} are free; "
                "lower max_num_seqs"
            )
        pages = self.config.cache.resolve_num_pages(
            page_bytes=layout.bytes_per_page, useful_pages=-(-longest // PAGE_TOKENS) * num_seqs, free_bytes=free
        )
        logger.info("cache: %d pages of %d tokens, %d slots", pages, PAGE_TOKENS, num_seqs)
        return CacheEngine(layout, pages + 1, num_seqs + 1, self.backend.device)


def _joint_layout(model: Model, drafter: Drafter | None) -> CacheLayout:
    layout = model.cache_layout()
    if drafter is None:
        return layout
    its = drafter.cache_layout()
    return CacheLayout(layout.pages + its.pages, layout.slots + its.slots)
