"""Drafts between two steps: who gets some, how many of them are verified, and what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
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

    from deepinfer_core._C import StepPlan
    from deepinfer_core.config import SpeculationConfig
    from deepinfer_core.engine.request import Sample
    from deepinfer_core.interfaces.sampler import ProposedToken, SamplingRow
    from deepinfer_core.speculation.verifier import Verifier
    from deepinfer_core.worker.worker import Worker

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class _Drafts:
    """A sequence's drafts, those not verified left out. All are of one length but ``proposed``, which may be longer."""

    token_ids: list[int]
    proposed: Sequence[ProposedToken | None]
    confidences: NDArray[np.float32]
    probabilities: NDArray[np.float64]


class Drafting:
    """An engine's drafts; :meth:`propose`, then the step, then :meth:`settle`.

    A drafter that fails is not asked again: samples go on without it, and say the same.

    blame: notes on an exception which plugin it comes from.
    """

    def __init__(self, worker: Worker, config: SpeculationConfig, blame: Callable[[BaseException], None]) -> None:
        self._worker = worker
        self._blame = blame
        self._verifier: Verifier = make_verifier(config.verifier, worker.sampler)
        self._length: DraftLength = AdaptiveLength() if config.speculate == "auto" else FixedLength(worker.num_drafts)
        self._calibration = Calibration()
        self._open: dict[int, _Drafts] = {}
        self._slots: dict[int, int] = {}
        self.is_active = True
        """Whether the drafter works."""
        self.statistics = SpeculationStatistics()

    @property
    def handles(self) -> Iterable[int]:
        """The samples that got a token in the last step."""
        return self._slots

    # -- before the step --------------------------------------------------------------------------

    def propose(self, decoding: Sequence[Sample]) -> dict[int, list[int]]:
        """Drafts for the next step by handle; ``decoding`` are the samples that have a newest token."""
        self._open = {}
        wanted = [sample for sample in decoding if self._room(sample) > 0]
        if not (wanted and self.is_active and self._length.wants_drafts(len(decoding))):
            return {}
        begin = time.monotonic()
        picks = _Picks(wanted, self._verifier)
        try:
            token_ids, confidences = self._propose(wanted, picks)
        except Exception as error:
            self._blame(error)
            logger.exception("the drafter failed; speculation is off from here on")
            self.is_active = False
            return {}
        finally:
            picks.undo()
        self._length.drafted(len(decoding), time.monotonic() - begin)
        self._choose(wanted, len(decoding), token_ids, confidences, picks)
        return {handle: drafts.token_ids for handle, drafts in self._open.items()}

    def _room(self, sample: Sample) -> int:
        """Drafts that can be of use: the last token that a sample may have needs none."""
        if not self._verifier.accepts(sample.request.params):
            return 0
        longest = self._worker.max_model_len - len(sample.request.prompt_token_ids)
        return min(sample.request.params.max_tokens or longest, longest) - len(sample.token_ids) - 1

    def _propose(self, samples: Sequence[Sample], picks: _Picks) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        num_drafts = min(self._worker.num_drafts, max(map(self._room, samples)))
        slots = [self._slots[sample.handle] for sample in samples]
        histories = [sample.history.view() for sample in samples]
        token_ids, confidences = self._worker.propose(slots, histories, num_drafts, picks)
        picks.check(token_ids)
        return token_ids, confidences

    def _choose(
        self,
        samples: Sequence[Sample],
        num_decoding: int,
        token_ids: NDArray[np.int64],
        confidences: NDArray[np.float32],
        picks: _Picks,
    ) -> None:
        counts = [_num_useful(sample, ids.tolist()) for sample, ids in zip(samples, token_ids, strict=True)]
        expected = self._calibration.probabilities(confidences)
        lengths = self._length.lengths(
            num_decoding, [each[:count] for each, count in zip(expected, counts, strict=True)]
        )
        for place, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
            self._open[sample.handle] = _Drafts(
                token_ids[place, :length].tolist(),
                picks.proposed(place),
                confidences[place, :length],
                expected[place, :length],
            )

    # -- the step ---------------------------------------------------------------------------------

    def rows(self, sample: Sample, position: int, num_drafts: int) -> Sequence[SamplingRow]:
        """The rows that verify so many of the sample's drafts; the first of them draws the token at ``position``."""
        drafts = self._open[sample.handle]
        token_ids = drafts.token_ids[:num_drafts]
        rows = sample.sampling.rows(position, token_ids)
        return self._verifier.rows(rows, token_ids, drafts.proposed)

    def settle(self, plan: StepPlan, counts: NDArray[np.int32], samples: Sequence[Sample], seconds: float) -> None:
        """Take in a step: ``counts`` and ``samples`` are of the plan's sampling sequences, ``seconds`` its time."""
        sampling = plan.samples
        self._slots = dict(zip(plan.handles[sampling].tolist(), plan.slots[sampling].tolist(), strict=True))
        self._length.ran(plan.num_rows, seconds)
        if not self._open:
            return
        confidences, outcomes = [], []
        num_drafts = plan.num_drafts[sampling].tolist()
        for sample, drafted, accepted in zip(samples, num_drafts, (counts - 1).tolist(), strict=True):
            if not drafted:
                continue
            drafts = self._open[sample.handle]
            reached = min(accepted + 1, drafted)
            confidences.append(drafts.confidences[:reached])
            outcomes.append(np.arange(reached) < accepted)
            sample.request.metrics.speculation.add(drafted, accepted)
            self.statistics.add(drafted, accepted, drafts.probabilities.tolist())
        if confidences:
            self._calibration.update(np.concatenate(confidences), np.concatenate(outcomes))
        self._length.verified(sum(num_drafts), int(counts.sum()) - len(counts), len(self._open))


def _num_useful(sample: Sample, token_ids: Sequence[int]) -> int:
    """How many drafts there are, none after one that would end the sample."""
    num_outputs = len(sample.token_ids)
    for place, token in enumerate(token_ids):
        if token < 0:
            return place
        if token in sample.request.stop_ids and num_outputs + place >= sample.request.params.tokens_before_stop:
            return place + 1
    return len(token_ids)


class _Picks:
    """Draws drafts depth by depth, each as the sample would draw its token if the drafts before were accepted."""

    def __init__(self, samples: Sequence[Sample], verifier: Verifier) -> None:
        self._samples = samples
        self._verifier = verifier
        self._positions = [len(sample.request.prompt_token_ids) + len(sample.token_ids) for sample in samples]
        self._proposed: list[Sequence[ProposedToken | None]] = []

    def __call__(self, depth: int, logits: Tensor) -> Tensor:
        """See :data:`deepinfer_core.interfaces.speculator.Pick`."""
        import torch

        if depth != len(self._proposed):
            raise ValueError(f"drafts must be picked in order, next is {len(self._proposed)}, got {depth}")
        rows = [
            sample.sampling.row(position + depth)
            for sample, position in zip(self._samples, self._positions, strict=True)
        ]
        token_ids, proposed = self._verifier.draw(logits, rows)
        failed = torch.from_numpy(token_ids < 0)
        picked = torch.from_numpy(token_ids.astype(np.int64))
        if failed.any():  # nothing could be drawn, which the model's row will report; any token will do
            picked = torch.where(failed, logits.argmax(-1).cpu(), picked)
        for sample, token in zip(self._samples, picked.tolist(), strict=True):
            sample.sampling.advance(token)
        self._proposed.append(proposed)
        return picked.to(logits.device)

    def proposed(self, place: int) -> list[ProposedToken | None]:
        """What each draft of one sample was drawn from; shorter than the drafts where they were not picked."""
        return [each[place] for each in self._proposed]

    def check(self, token_ids: NDArray[np.int64]) -> None:
        """Raise ValueError if a proposal holds other drafts than were picked."""
        for depth, proposed in enumerate(self._proposed[: token_ids.shape[1]]):
            for place, each in enumerate(proposed):
                found = int(token_ids[place, depth])
                if each is not None and found not in (each.token, -1):
                    raise ValueError(f"draft {depth} must be the token that was picked, {each.token}, got {found}")

    def undo(self) -> None:
        """Leave the samples as they were."""
        for sample in self._samples:
            sample.sampling.retreat(len(self._proposed))
