"""One rank: the backend, the loaded model and its caches."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.cache import PAGE_TOKENS
from deepinfer_core.interfaces.model import ModelContext
from deepinfer_core.model_loader import CheckpointIndex, HFConfig, load_weights
from deepinfer_core.model_loader.tied import warn_if_different
from deepinfer_core.sampling.checked import checked
from deepinfer_core.sampling.processors import with_processors
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.kernels import model_kernels
from deepinfer_core.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.model import ArchitectureConfig, Model
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_core.tokenizer import Tokenizer
    from deepinfer_core.worker.step_rows import StepResult, StepRows

logger = logging.getLogger(__name__)


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
        # Checked before the weights are read: a bad config or an unreadable index fails in milliseconds.
        index = CheckpointIndex.open(hf_config.path)
        model, self.arch_config = self._build_model(manager, hf_config, tokenizer)
        self._load(model, index)
        caches = self._allocate(model)
        self.max_model_len = config.model.resolve_max_model_len(
            self.arch_config.max_position_embeddings, (caches.num_pages - 1) * PAGE_TOKENS
        )
        """Longest sequence in tokens that the model and the cache allow."""
        sampler = with_processors(checked(manager.component("sampler")), manager.named("logits_processor"))
        self.runner = ModelRunner(model, caches, sampler, self.backend.device)

    def execute(self, plan: StepPlan, rows: StepRows) -> StepResult:
        """Run one step."""
        return self.runner.execute(plan, rows)

    def _build_model(
        self, manager: PluginManager, hf_config: HFConfig, tokenizer: Tokenizer | None
    ) -> tuple[Model, ArchitectureConfig]:
        architecture = manager.model_for(hf_config.architecture)
        arch_config = architecture.translate_config(hf_config.config)
        kernels = model_kernels(manager, self.backend)
        # Samples that fork process their prompt's last token again.
        context = ModelContext(kernels=kernels, rollback=1, tokenizer=tokenizer, device=self.backend.device)
        return architecture.build(arch_config, context), arch_config

    def _load(self, model: Model, index: CheckpointIndex) -> None:
        for name, used_instead in model.tied_tensors().items():
            warn_if_different(index, name, used_instead)
        load_weights(
            model.module,
            index,
            model.weight_specs(),
            ignore=model.unused_tensor,
            device=self.backend.device,
            use_tqdm=self.config.use_tqdm,
            watchdog_seconds=self.config.model.load_watchdog_seconds,
        )

    def _allocate(self, model: Model) -> CacheEngine:
        layout = model.cache_layout()
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
