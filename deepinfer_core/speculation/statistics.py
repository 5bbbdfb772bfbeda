"""What drafting has come to, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.outputs import SpeculationMetrics


class SpeculationStatistics:
    """An engine's :class:`SpeculationMetrics`, and how far the expected acceptance is from the observed."""

    def __init__(self) -> None:
        self._num_verifications = 0
        self._drafted = self._reached = self._accepted = np.zeros(0, np.int64)
        self._expected = np.zeros(0)

    @property
    def metrics(self) -> SpeculationMetrics:
        """What it has come to."""
        metrics = SpeculationMetrics()
        metrics.add_counts(self._num_verifications, self._drafted.tolist(), self._accepted.tolist())
        return metrics

    def add(self, drafted: NDArray[np.int32], accepted: NDArray[np.int32], probabilities: NDArray[np.float64]) -> None:
        """Verifications of S sequences: drafts of each, how many of them were accepted, and with which probability
        each was expected to be, given those before it, ``[S, B]``.
        """
        depths = np.arange(probabilities.shape[1])
        is_drafted = depths < drafted[:, None]
        is_accepted = depths < accepted[:, None]
        is_reached = is_drafted & (depths <= accepted[:, None])
        self._num_verifications += len(drafted)
        self._drafted = _sum(self._drafted, is_drafted.sum(0))
        self._accepted = _sum(self._accepted, is_accepted.sum(0))
        self._reached = _sum(self._reached, is_reached.sum(0))
        self._expected = _sum(self._expected, np.where(is_reached, probabilities, 0.0).sum(0))

    def snapshot(self) -> dict[str, float]:
        """Plain numbers; ``acceptance_depth_1`` is of first drafts, of those at depth n that were reached.

        ``confidence_error`` is the gap between expected and observed acceptance, in [0, 1], averaged over depths by
        the drafts reached.
        """
        metrics = self.metrics
        numbers: dict[str, float] = {
            "drafted_tokens": metrics.num_drafted,
            "accepted_tokens": metrics.num_accepted,
            "verifications": metrics.num_verifications,
        }
        if metrics.mean_accepted_length is None:
            return numbers
        numbers["mean_accepted_length"] = metrics.mean_accepted_length
        gaps = np.abs(self._expected - self._accepted)
        numbers["confidence_error"] = float(gaps.sum() / self._reached.sum())
        for depth, (reached, accepted) in enumerate(zip(self._reached.tolist(), self._accepted.tolist(), strict=True)):
            if reached:
                numbers[f"acceptance_depth_{depth + 1}"] = accepted / reached
        return numbers


def _sum(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Elementwise, the shorter one continued with zeros."""
    if len(left) < len(right):
        left, right = right, left
    total = left.copy()
    total[: len(right)] += right
    return total
