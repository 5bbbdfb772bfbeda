"""Runs one step on the device: inputs, forward, logits, sampling; and drafts between steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer_core.interfaces.speculator import DraftBatch
from deepinfer_core.sampling.scorer import Scorer
from deepinfer_core.speculation.acceptance import sampled_rows
from deepinfer_core.worker.input_metadata import build_input_batch
from deepinfer_core.worker.step_rows import StepResult

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.model import Model, Tap
    from deepinfer_core.interfaces.sampler import Sampler
    from deepinfer_core.interfaces.speculator import Drafter, Pick, Proposal
    from deepinfer_core.worker.cache_engine import CacheEngine
    from deepinfer_core.worker.step_rows import StepRows


class ModelRunner:
    """A loaded model with its caches, and its drafter, if it has one.

    tap: shown the model's intermediate values; for tests and debugging.
    """

    def __init__(
        self,
        model: Model,
        caches: CacheEngine,
        sampler: Sampler,
        device: torch.device,
        drafter: Drafter | None = None,
    ) -> None:
        self.model = model
        self.caches = caches
        self.drafter = drafter
        self.tap: Tap | None = None
        self._sampler = sampler
        self._scorer = Scorer()
        self._device = device
        self._metadata_builders = [part.build_metadata for part in (model, drafter) if part is not None]

    def execute(self, plan: StepPlan, rows: StepRows) -> StepResult:
        """Run the plan, draw a token for each row that yields one, and score the prompt rows asked for."""
        begin = time.monotonic()
        hidden = self.forward(plan)
        yielding = torch.from_numpy(sampled_rows(plan)).to(self._device)
        logits = self.model.logits(hidden[yielding])
        sampled = self._sampler.sample(logits, rows.sampling)
        seconds = time.monotonic() - begin
        if rows.prompt is None:
            return StepResult(sampled, seconds)
        return StepResult(sampled, seconds, self._scorer.score(hidden, rows.prompt, self.model.logits, logits.shape[1]))

    def forward(self, plan: StepPlan) -> Tensor:
        """Make the plan's copies, run the layers, write the caches, the drafter's too → the rows' hidden states.

        These are ``[N, hidden]`` bf16.
        """
        self.caches.copy(plan)
        batch = build_input_batch(plan, self.model.token_lookback, self._device, *self._metadata_builders)
        if self.drafter is None:
            return self.model.forward(batch, self.caches.tensors, self.tap)
        features = self.drafter.new_features(len(batch)) if self.drafter.feature_layers else None
        hidden = self.model.forward(batch, self.caches.tensors, self.tap, features)
        self.drafter.observe(batch, features, self.caches.tensors, self.tap)
        return hidden

    def propose(
        self, slots: Sequence[int], histories: Sequence[NDArray[np.int32]], num_drafts: int, pick: Pick
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Drafts ``[S, B]``, -1 where there is none, and their confidences, for sequences with these tokens.

        Raises TypeError or ValueError for a proposal that is none.
        """
        assert self.drafter is not None, "whoever asks for drafts has a drafter"
        batch = DraftBatch(
            torch.tensor([int(history[-1]) for history in histories], device=self._device),
            torch.tensor([len(history) - 1 for history in histories], device=self._device),
            torch.tensor(slots, dtype=torch.int32, device=self._device),
            histories,
            num_drafts,
        )
        proposal = self.drafter.propose(batch, self.caches.tensors, pick)
        return _checked(proposal, len(batch), num_drafts)


def _checked(proposal: Proposal, num_seqs: int, num_drafts: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The proposal's drafts, no more than asked for, on the host."""
    token_ids, confidences = proposal.token_ids, proposal.confidences
    if token_ids.ndim != 2 or len(token_ids) != num_seqs or confidences.shape != token_ids.shape:
        raise ValueError(
            f"a proposal for {num_seqs} sequences must have token_ids and confidences of shape [{num_seqs}, B], got "
            f"{list(token_ids.shape)} and {list(confidences.shape)}"
        )
    if token_ids.is_floating_point():
        raise TypeError(f"a proposal's token_ids must be int64, got {token_ids.dtype}")
    ids = token_ids[:, :num_drafts].cpu().numpy().astype(np.int64)
    odds = confidences[:, :num_drafts].detach().float().cpu().numpy()
    if np.isnan(odds).any():
        raise ValueError("a proposal's confidences must be numbers, got NaN")
    return ids, odds
