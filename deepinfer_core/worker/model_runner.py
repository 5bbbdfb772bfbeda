"""Runs one step on the device: inputs, forward, logits, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from deepinfer_core.worker.input_metadata import build_input_batch, sampled_rows

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.model import Model, Tap
    from deepinfer_core.interfaces.sampler import Sampler, SamplerOutput, SamplingRow
    from deepinfer_core.worker.cache_engine import CacheEngine


class ModelRunner:
    """A loaded model with its caches.

    tap: shown the model's intermediate values; for tests and debugging.
    """

    def __init__(self, model: Model, caches: CacheEngine, sampler: Sampler, device: torch.device) -> None:
        self.model = model
        self.caches = caches
        self.tap: Tap | None = None
        self._sampler = sampler
        self._device = device

    def execute(self, plan: StepPlan, rows: Sequence[SamplingRow]) -> SamplerOutput:
        """Run the plan; ``rows`` says how each sampling sequence's token is drawn, in plan order."""
        return self._sampler.sample(self.forward(plan), rows)

    def forward(self, plan: StepPlan) -> Tensor:
        """Run the layers, write the caches, and return logits ``[num_samples, vocab]`` f32."""
        batch = build_input_batch(plan, self.model.token_lookback, self._device)
        hidden = self.model.forward(batch, self.caches.tensors, self.tap)
        rows = torch.from_numpy(sampled_rows(plan)).to(self._device)
        return self.model.logits(hidden[rows])
