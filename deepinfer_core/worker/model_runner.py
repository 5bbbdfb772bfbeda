"""Runs one step on the device: inputs, forward, logits, sampling; and drafts between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer_core.interfaces.speculator import DraftBatch
from deepinfer_core.sampling.scorer import Scorer
from deepinfer_core.worker.input_metadata import make_input_batch
from deepinfer_core.worker.step_input import StepInput

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.model import InputBatch, LayerFeatures, Model, Tap
    from deepinfer_core.interfaces.prompt_rows import PromptRows
    from deepinfer_core.interfaces.sampler import Sampler, SamplerOutput, SamplingBatch
    from deepinfer_core.interfaces.speculator import Drafter, Pick, Proposal
    from deepinfer_core.worker.cache_engine import CacheEngine


class Decoding(Protocol):
    """S sequences to draft for, each with a newest token that no forward has seen."""

    @property
    def slots(self) -> NDArray[np.int32]:
        """``[S]`` state slots."""

    @property
    def num_tokens(self) -> NDArray[np.int32]:
        """``[S]`` tokens known."""

    @property
    def newest(self) -> NDArray[np.int32]:
        """``[S]``, the last of them."""


@attrs.frozen(eq=False)
class PreparedStep:
    """A step on the device.

    yielding: ``[R]`` int64, the rows that yield a token. pending: ``[P]`` int64 rows whose token is still to be drawn,
    and which of the R tokens of the step before each is; None where all are known.
    """

    step: StepInput
    batch: InputBatch
    yielding: Tensor
    pending: tuple[Tensor, Tensor] | None = None


@attrs.frozen(eq=False)
class StepResult:
    """What came of a step: a token for each of its R sampled rows, and for prompt rows their tokens' scores."""

    sampled: SamplerOutput
    prompt: SamplerOutput | None = None


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
        self.drafter_failure: Exception | None = None
        """What the drafter raised when it was shown a step; it is asked for nothing any more."""
        self._drawn = torch.empty(0, dtype=torch.int64)
        """``[R]``, the last step's tokens, for rows of the next one that were planned without them."""
        self._metadata_builders = [part.build_metadata for part in (model, drafter) if part is not None]

    # -- one step ---------------------------------------------------------------------------------

    def prepare(self, plan: StepPlan) -> PreparedStep:
        """The plan on the device, with everything that the host knows of it."""
        step = StepInput.of(plan)
        batch = make_input_batch(step.rows, step.token_ids, step.context_ids, self._device, *self._metadata_builders)
        yielding = torch.from_numpy(step.sampled_rows).to(self._device)
        pending = None
        if len(step.pending_rows):
            rows, sources = torch.from_numpy(np.stack([step.pending_rows, step.pending_sources])).to(self._device)
            pending = rows, sources
        return PreparedStep(step, batch, yielding, pending)

    def forward(self, prepared: PreparedStep) -> Tensor:
        """Make the plan's copies, run the layers, write the caches, the drafter's too → the rows' hidden states.

        These are ``[N, hidden]`` bf16. Tokens that the step before has drawn are filled in first.
        """
        step, batch = prepared.step, prepared.batch
        self.caches.copy(step)
        if prepared.pending is not None:
            rows, sources = prepared.pending
            # A row that drew nothing has ended its sequence; any token will do for it.
            tokens = self._drawn.index_select(0, sources).clamp(min=0)
            batch.token_ids.index_copy_(0, rows, tokens)
            batch.context_ids[:, 0].index_copy_(0, rows, tokens)
        if self.drafter is None:
            return self.model.forward(batch, self.caches.tensors, self.tap)
        features = self.drafter.new_features(len(batch)) if self.drafter.feature_layers else None
        hidden = self.model.forward(batch, self.caches.tensors, self.tap, features)
        self._observe(batch, features)
        return hidden

    def _observe(self, batch: InputBatch, features: LayerFeatures | None) -> None:
        """Show the step to the drafter. One that fails is shown no more: nobody needs it to go on."""
        if self.drafter is None or self.drafter_failure is not None:
            return
        try:
            self.drafter.observe(batch, features, self.caches.tensors, self.tap)
        except Exception as error:
            self.drafter_failure = error

    def sample(
        self, prepared: PreparedStep, hidden: Tensor, batch: SamplingBatch, prompt: PromptRows | None
    ) -> StepResult:
        """Draw a token for each row that yields one, and score the prompt rows asked for."""
        logits = self.model.logits(hidden[prepared.yielding])
        sampled = self._sampler.sample(logits, batch)
        self._drawn = torch.from_numpy(sampled.token_ids).to(self._device, torch.int64)
        if prompt is None:
            return StepResult(sampled)
        return StepResult(sampled, self._scorer.score(hidden, prompt, self.model.logits, logits.shape[1]))

    # -- between two steps ------------------------------------------------------------------------

    def propose(
        self, sequences: Decoding, histories: Sequence[NDArray[np.int32]], num_drafts: int, pick: Pick
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Drafts ``[S, B]``, -1 where there is none, and their confidences, for sequences with these tokens.

        Raises TypeError or ValueError for a proposal that is none.
        """
        assert self.drafter is not None, "whoever asks for drafts has a drafter"
        batch = DraftBatch(
            torch.from_numpy(sequences.newest.astype(np.int64)).to(self._device),
            torch.from_numpy(sequences.num_tokens.astype(np.int64) - 1).to(self._device),
            torch.from_numpy(sequences.slots.copy()).to(self._device),
            histories,
            num_drafts,
        )
        proposal = self.drafter.propose(batch, self.caches.tensors, pick)
        return _checked(proposal, len(batch), num_drafts)


def _checked(proposal: Proposal, num_seqs: int, num_drafts: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The proposal's drafts, no more than asked for, on the host."""
    token_ids, confidences = proposal.token_ids, proposal.confidences
    if token_ids.ndim != 2 or len(token_ids) != num_seqs or confidences.shape != token_ids.shape:
        raise ValueError(
            f"a proposal for {num_seqs} sequences must have token_ids and confidences of shape [{num_seqs}, B], got "
            f"{list(token_ids.shape)} and {list(confidences.shape)}"
        )
    if token_ids.is_floating_point():
        raise TypeError(f"a proposal's token_ids must be int64, got {token_ids.dtype}")
    ids = token_ids[:, :num_drafts].clamp(-2, 2**31 - 1).cpu().numpy().astype(np.int32)
    odds = confidences[:, :num_drafts].detach().float().cpu().numpy()
    if np.isnan(odds).any():
        raise ValueError("a proposal's confidences must be numbers, got NaN")
    return ids, odds
