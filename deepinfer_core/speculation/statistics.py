"""What drafting has come to, in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.outputs import SpeculationMetrics


class SpeculationStatistics:
    """An engine's :class:`SpeculationMetrics`, and how far the expected acceptance is from the observed."""

    def __init__(self) -> None:
        self.metrics = SpeculationMetrics()
        self._expected: list[float] = []
        self._reached: list[int] = []
        self._accepted: list[int] = []

    def add(self, num_drafts: int, num_accepted: int, probabilities: Sequence[float]) -> None:
        """One verification; ``probabilities`` are what was expected of each draft, given those before it."""
        self.metrics.add(num_drafts, num_accepted)
        missing = num_drafts - len(self._reached)
        self._expected += [0.0] * missing
        self._reached += [0] * missing
        self._accepted += [0] * missing
        for depth in range(min(num_accepted + 1, num_drafts)):
            self._expected[depth] += probabilities[depth]
            self._reached[depth] += 1
            self._accepted[depth] += depth < num_accepted

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
        gaps = (abs(e - a) for e, a in zip(self._expected, self._accepted, strict=True))
        numbers["confidence_error"] = sum(gaps) / sum(self._reached)
        for depth, (reached, accepted) in enumerate(zip(self._reached, self._accepted, strict=True), start=1):
            if reached:
                numbers[f"acceptance_depth_{depth}"] = accepted / reached
        return numbers
