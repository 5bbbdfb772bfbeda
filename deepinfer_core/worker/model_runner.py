"""Runs one step on the device: inputs, forward, logits, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deepinfer_core.sampling.scorer import Scorer
from deepinfer_core.worker.input_metadata import build_input_batch, sampled_rows
from deepinfer_core.worker.step_rows import StepResult

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.model import Model, Tap
    from deepinfer_core.interfaces.sampler import Sampler
    from deepinfer_core.worker.cache_engine import CacheEngine
    from deepinfer_core.worker.step_rows import StepRows


class ModelRunner:
    """A loaded model with its caches.

    tap: shown the model's intermediate values; for tests and debugging.
    """

    def __init__(self, model: Model, caches: CacheEngine, sampler: Sampler, device: torch.device) -> None:
        self.model = model
        self.caches = caches
        self.tap: Tap | None = None
        self._sampler = sampler
        self._scorer = Scorer()
        self._device = device

    def execute(self, plan: StepPlan, rows: StepRows) -> StepResult:
        """Run the plan, draw a token for each sampling sequence, and score the prompt rows asked for."""
        hidden = self.forward(plan)
        last = torch.from_numpy(sampled_rows(plan)).to(self._device)
        logits = self.model.logits(hidden[last])
        sampled = self._sampler.sample(logits, rows.sampling)
        if rows.prompt is None:
            return StepResult(sampled)
        return StepResult(sampled, self._scorer.score(hidden, rows.prompt, self.model.logits, logits.shape[1]))

    def forward(self, plan: StepPlan) -> Tensor:
        """Make the plan's copies, run the layers, write the caches → the rows' hidden states ``[N, hidden]`` bf16."""
        self.caches.copy(plan)
        batch = build_input_batch(plan, self.model.token_lookback, self._device)
        return self.model.forward(batch, self.caches.tensors, self.tap)
