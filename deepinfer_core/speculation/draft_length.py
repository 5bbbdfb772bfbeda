"""How many drafts are verified, and whether any are made."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.speculation.cost_curve import CostCurve

#: A step without drafts is run when there has been none of its size for this many steps.
_REFRESH_STEPS = 256
#: Drafting steps after which drafting is judged.
_PROBE_STEPS = 6
#: Steps without drafts after drafting has lost, at first and at most.
_PAUSE_STEPS = (16, 512)
#: The weight of the last step in averages, once there are some.
_RATE = 0.1


class DraftLength(Protocol):
    """Decides, step by step, for the sequences that decode."""

    def wants_drafts(self, num_seqs: int) -> bool:
        """Whether to draft for these many sequences."""
        ...

    def lengths(
        self, num_seqs: int, probabilities: NDArray[np.float64], useful: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """How many of each sequence's drafts to verify, ``[S]``.

        num_seqs: all that decode. probabilities: ``[S, B]``, of sequences for which drafts were made, that a draft is
        accepted, given that those before it are. useful: ``[S]``, how many of them can be of use. Whether a draft is
        verified does not depend on those after it.
        """
        ...

    def drafted(self, num_seqs: int, seconds: float) -> None:
        """Drafting for these many sequences has taken so long."""

    def ran(self, num_rows: int, seconds: float) -> None:
        """A step has taken so long, drafting left out."""

    def verified(self, num_drafts: int, num_accepted: int, num_seqs: int) -> None:
        """What came of the drafts of sequences for which there were some."""


class FixedLength:
    """Always the same number, as far as the drafter proposes so many."""

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts

    def wants_drafts(self, num_seqs: int) -> bool:
        """Always."""
        return True

    def lengths(
        self, num_seqs: int, probabilities: NDArray[np.float64], useful: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """The number, or what there is."""
        return np.minimum(useful, self._num_drafts).astype(np.int32)

    def drafted(self, num_seqs: int, seconds: float) -> None:
        """Nothing is learned."""

    def ran(self, num_rows: int, seconds: float) -> None:
        """Nothing is learned."""

    def verified(self, num_drafts: int, num_accepted: int, num_seqs: int) -> None:
        """Nothing is learned."""


class AdaptiveLength:
    """As many as raise the expected tokens per second, by what steps and drafting have been found to cost.

    Drafting as a whole is weighed too: where it yields less than plain steps it pauses, each time longer, and tries
    again.
    """

    def __init__(self) -> None:
        self._steps, self._drafting = CostCurve(), CostCurve()
        self._pause = 0
        """Steps without drafts that are left."""
        self._next_pause = _PAUSE_STEPS[0]
        self._start_probe()

    def _start_probe(self) -> None:
        self._probed = 0
        self._drafts_per_seq = self._accepted_per_seq = 0.0

    def wants_drafts(self, num_seqs: int) -> bool:
        """Unless drafting pauses, or a step without drafts is due."""
        if self._pause:
            self._pause -= 1
            if not self._pause:
                self._start_probe()
            return False
        if self._steps.age(num_seqs) > _REFRESH_STEPS:
            return False
        if self._probed < _PROBE_STEPS:
            return True
        if self._gain(num_seqs) >= 1.0:
            self._next_pause = _PAUSE_STEPS[0]
            return True
        self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _PAUSE_STEPS[1])
        return False

    def _gain(self, num_seqs: int) -> float:
        """Tokens per second with drafting, as a multiple of those without."""
        plain = float(self._steps(num_seqs))
        rows = round(num_seqs * (1 + self._drafts_per_seq))
        seconds = float(self._steps(rows) + self._drafting(num_seqs))
        return (1 + self._accepted_per_seq) * plain / seconds if seconds > 0 else 1.0

    def lengths(
        self, num_seqs: int, probabilities: NDArray[np.float64], useful: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """The likeliest drafts first, as long as each raises the rate; while drafting is tried, one at least."""
        is_useful = np.arange(probabilities.shape[1]) < useful[:, None]
        survival = np.cumprod(probabilities, axis=1)
        owners, gains = np.nonzero(is_useful)[0], survival[is_useful]
        order = np.argsort(-gains, kind="stable")  # a sequence's own drafts stay in their order
        tokens = num_seqs + np.concatenate([[0.0], np.cumsum(gains[order])])
        seconds = self._steps(num_seqs + np.arange(len(tokens))) + self._drafting(num_seqs)
        rates = tokens / np.maximum(seconds, 1e-9)
        worse = (rates[1:] <= rates[:-1]).nonzero()[0]
        chosen = order[: worse[0]] if len(worse) else order
        lengths = np.bincount(owners[chosen], minlength=len(useful))
        if self._probed < _PROBE_STEPS:
            lengths = np.maximum(lengths, np.minimum(useful, 1))
        return lengths.astype(np.int32)

    def drafted(self, num_seqs: int, seconds: float) -> None:
        """Learn what drafting costs."""
        self._drafting.add(num_seqs, seconds)

    def ran(self, num_rows: int, seconds: float) -> None:
        """Learn what steps cost."""
        self._steps.add(num_rows, seconds)

    def verified(self, num_drafts: int, num_accepted: int, num_seqs: int) -> None:
        """Learn what drafting yields."""
        self._probed += 1
        rate = max(1 / self._probed, _RATE)
        self._drafts_per_seq += rate * (num_drafts / num_seqs - self._drafts_per_seq)
        self._accepted_per_seq += rate * (num_accepted / num_seqs - self._accepted_per_seq)
