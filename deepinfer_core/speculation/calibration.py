"""From a drafter's confidences to probabilities of acceptance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FORGETTING = 0.999
#: How firmly confidences are believed before there is evidence, in outcomes.
_PRIOR = 8.0


class Calibration:
    """The probability that a draft is accepted, given that those before it are: ``sigmoid(scale * confidence + bias)``.

    scale is 1 over the temperature of the confidences. Both are fitted to the outcomes as they come, by a Newton step
    of logistic regression over all outcomes, older ones forgotten slowly.
    """

    def __init__(self) -> None:
        self.scale, self.bias = 1.0, 0.0
        self._curvature = np.eye(2) * _PRIOR / 4

    def probabilities(self, confidences: NDArray[np.float32]) -> NDArray[np.float64]:
        """Elementwise, of log-odds."""
        return np.asarray(1 / (1 + np.exp(-(self.scale * _clipped(confidences) + self.bias))))

    def update(self, confidences: NDArray[np.float32], accepted: NDArray[np.bool_]) -> None:
        """Take in outcomes: of drafts whose predecessors were all accepted, ``[n]`` each."""
        if not len(confidences):
            return
        predicted = self.probabilities(confidences)
        inputs = np.stack([_clipped(confidences), np.ones(len(confidences))])
        kept = _FORGETTING ** len(confidences)
        self._curvature = kept * self._curvature + (1 - kept) * np.eye(2) * _PRIOR / 4
        self._curvature += (inputs * (predicted * (1 - predicted))) @ inputs.T
        step = np.linalg.solve(self._curvature, inputs @ (accepted - predicted))
        self.scale = float(np.clip(self.scale + step[0], 0.0, 4.0))
        self.bias = float(np.clip(self.bias + step[1], -8.0, 8.0))


def _clipped(confidences: NDArray[np.float32]) -> NDArray[np.float64]:
    """Beyond 30, log-odds are certainty."""
    return np.clip(confidences.astype(np.float64), -30, 30)
