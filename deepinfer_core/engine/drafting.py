"""Drafts between two steps: who gets some, how many of them are verified, and what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.speculation.calibration import Calibration
from deepinfer_core.speculation.draft_length import AdaptiveLength, DraftLength, FixedLength
from deepinfer_core.speculation.statistics import SpeculationStatistics
from deepinfer_core.speculation.verifier import make_verifier

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core import _C
    from deepinfer_core.config import SpeculationConfig
    from deepinfer_core.engine.sampling_inputs import SamplingInputs
    from deepinfer_core.interfaces.sampler import Proposals, SamplingBatch
    from deepinfer_core.speculation.verifier import Verifier
    from deepinfer_core.worker.worker import Worker

logger = logging.getLogger(__name__)

#: As ``Scheduler.schedule`` takes them: handles ``[S]``, counts ``[S]``, tokens ``[S, B]``.
DraftArrays = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]


@attrs.frozen(eq=False)
class _Round:
    """The drafts of one step, of S sequences by rising handle."""

    handles: NDArray[np.int64]
    confidences: NDArray[np.float32]
    """``[S, B]``."""
    probabilities: NDArray[np.float64]
    """``[S, B]``, what they are taken to mean."""
    picked: Sequence[Proposals | None]
    """By depth, what the drafts were drawn from; None where they were drawn like the model's own tokens."""


class _Sequences:
    """The sequences that drafts are made for."""

    def __init__(self, decoding: _C.Decoding, chosen: NDArray[np.bool_]) -> None:
        self.handles = decoding.handles[chosen]
        self.slots = decoding.slots[chosen]
        self.num_tokens = decoding.num_tokens[chosen]
        self.newest = decoding.newest[chosen]
        self.tags = decoding.tags[chosen]
        self.room = decoding.room[chosen]


class _Histories(Sequence[NDArray[np.int32]]):
    """The sequences' tokens, looked up by a drafter that asks for them."""

    def __init__(self, scheduler: _C.Scheduler, handles: NDArray[np.int64]) -> None:
        self._scheduler = scheduler
        self._handles = handles

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, place: int) -> NDArray[np.int32]:  # type: ignore[override]  # nobody slices it
        return self._scheduler.tokens(int(self._handles[place]))


class Drafting:
    """An engine's drafts; :meth:`propose`, then the step, then :meth:`settle`.

    A drafter that fails is not asked again: sequences go on without it, and say the same.

    blame: notes on an exception which plugin it comes from.
    """

    def __init__(
        self,
        worker: Worker,
        scheduler: _C.Scheduler,
        inputs: SamplingInputs,
        config: SpeculationConfig,
        blame: Callable[[BaseException], None],
    ) -> None:
        self._worker = worker
        self._scheduler = scheduler
        self._inputs = inputs
        self._blame = blame
        self._verifier: Verifier = make_verifier(config.verifier, worker.sampler)
        self._length: DraftLength = AdaptiveLength() if config.speculate == "auto" else FixedLength(worker.num_drafts)
        self._calibration = Calibration()
        self._round: _Round | None = None
        self.is_active = True
        """Whether the drafter works."""
        self.statistics = SpeculationStatistics()

    # -- before the step --------------------------------------------------------------------------

    def propose(self) -> DraftArrays | None:
        """Drafts for the sequences that decode in the next step; None for none."""
        self._round = None
        self._notice_failure()
        decoding = self._scheduler.decoding()
        num_decoding = len(decoding.handles)
        chosen = (decoding.room > 0) & self._verifier.accepts(decoding.temperature)
        if not (chosen.any() and self.is_active and self._length.wants_drafts(num_decoding)):
            return None
        begin = time.monotonic()
        sequences = _Sequences(decoding, chosen)
        picks = _Picks(sequences, self._inputs, self._verifier)
        num_drafts = min(self._worker.num_drafts, int(sequences.room.max()))
        try:
            histories = _Histories(self._scheduler, sequences.handles)
            token_ids, confidences = self._worker.propose(sequences, histories, num_drafts, picks)
            picks.check(token_ids)
        except Exception as error:
            self._give_up(error)
            return None
        self._length.drafted(num_decoding, time.monotonic() - begin)
        return self._choose(sequences, num_decoding, token_ids, confidences, picks)

    def _notice_failure(self) -> None:
        failure = self._worker.runner.drafter_failure
        if failure is not None and self.is_active:
            self._give_up(failure)

    def _give_up(self, error: Exception) -> None:
        self._blame(error)
        logger.error("the drafter failed; speculation is off from here on", exc_info=error)
        self.is_active = False

    def _choose(
        self,
        sequences: _Sequences,
        num_decoding: int,
        token_ids: NDArray[np.int32],
        confidences: NDArray[np.float32],
        picks: _Picks,
    ) -> DraftArrays:
        width = np.full(len(token_ids), token_ids.shape[1], np.int32)
        useful = self._scheduler.num_useful(sequences.handles, width, np.ascontiguousarray(token_ids))
        probabilities = self._calibration.probabilities(confidences)
        counts = self._length.lengths(num_decoding, probabilities, useful)
        self._round = _Round(sequences.handles, confidences, probabilities, picks.proposals)
        return sequences.handles, counts, np.where(np.arange(token_ids.shape[1]) < counts[:, None], token_ids, 0)

    # -- the step ---------------------------------------------------------------------------------

    def verifying(self, plan: _C.StepPlan, batch: SamplingBatch) -> SamplingBatch:
        """The rows of a step, made ready to decide about the plan's drafts."""
        if self._round is None or not plan.num_drafts.any():
            return batch
        handles = plan.handles[plan.samples]
        places = np.searchsorted(self._round.handles, handles)
        return self._verifier.verifying(batch, plan, places, self._round.picked)

    def settle(self, plan: _C.StepPlan, counts: NDArray[np.int32], seconds: float) -> None:
        """Take in a step: ``counts`` are the tokens of the plan's sampling sequences, ``seconds`` its time."""
        self._length.ran(plan.num_rows, seconds)
        if self._round is None:
            return
        num_drafts = plan.num_drafts[plan.samples]
        drafted = np.flatnonzero(num_drafts)
        if len(drafted):
            places = np.searchsorted(self._round.handles, plan.handles[plan.samples][drafted])
            verified, accepted = num_drafts[drafted], counts[drafted] - 1
            depths = np.arange(self._round.confidences.shape[1])
            # Outcomes are those of the drafts that were reached: the accepted ones, and the first that was not.
            is_reached = depths < np.minimum(accepted + 1, verified)[:, None]
            is_accepted = depths < accepted[:, None]
            self._calibration.update(self._round.confidences[places][is_reached], is_accepted[is_reached])
            self.statistics.add(verified, accepted, self._round.probabilities[places])
        self._length.verified(int(num_drafts.sum()), int(counts.sum()) - len(counts), len(self._round.handles))


class _Picks:
    """Draws drafts depth by depth, each as its sequence would draw its token if the drafts before were accepted."""

    def __init__(self, sequences: _Sequences, inputs: SamplingInputs, verifier: Verifier) -> None:
        self._sequences = sequences
        self._inputs = inputs
        self._verifier = verifier
        self._drafts = np.empty((len(sequences.handles), 0), np.int32)
        self.proposals: list[Proposals | None] = []

    def __call__(self, depth: int, logits: Tensor) -> Tensor:
        """See :data:`deepinfer_core.interfaces.speculator.Pick`. One call draws for all sequences."""
        import torch

        if depth != len(self.proposals):
            raise ValueError(f"drafts must be picked in order, next is {len(self.proposals)}, got {depth}")
        batch = self._inputs.drafts(self._sequences.handles, self._sequences.tags, self._drafts)
        token_ids, proposals = self._verifier.draw(logits, batch)
        picked = torch.from_numpy(token_ids.astype(np.int64))
        failed = token_ids < 0
        if failed.any():  # nothing could be drawn, which the model's row will report; any token will do
            picked = torch.where(torch.from_numpy(failed), logits.argmax(-1).cpu(), picked)
        self._drafts = np.column_stack([self._drafts, picked.numpy().astype(np.int32)])
        self.proposals.append(proposals)
        return picked.to(logits.device)

    def check(self, token_ids: NDArray[np.int32]) -> None:
        """Raise ValueError if a proposal holds other drafts than were picked."""
        width = min(token_ids.shape[1], self._drafts.shape[1])
        found, picked = token_ids[:, :width], self._drafts[:, :width]
        is_drawn = np.array([each is not None for each in self.proposals[:width]], bool)
        wrong = np.argwhere((found != picked) & (found != -1) & is_drawn)
        if len(wrong):
            place, depth = wrong[0]
            raise ValueError(
                f"draft {depth} must be the token that was picked, {picked[place, depth]}, got {found[place, depth]}"
            )
