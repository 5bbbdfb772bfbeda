"""Acceptance in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer_core.outputs import SpeculationMetrics
from deepinfer_core.speculation.statistics import SpeculationStatistics


def test_counts_by_depth() -> None:
    metrics = SpeculationMetrics()
    assert metrics.mean_accepted_length is None
    for drafted, accepted in ((3, 3), (2, 0), (5, 1)):
        metrics.add_counts(1, [1] * drafted, [1] * accepted + [0] * (drafted - accepted))
    assert metrics.drafted_by_depth == [3, 3, 2, 1, 1] and metrics.accepted_by_depth == [2, 1, 1, 0, 0]
    assert (metrics.num_drafted, metrics.num_accepted, metrics.num_verifications) == (10, 4, 3)
    assert metrics.mean_accepted_length == pytest.approx(1 + 4 / 3)


def test_acceptance_is_of_the_drafts_that_were_reached_and_set_against_what_was_expected() -> None:
    statistics = SpeculationStatistics()
    assert "confidence_error" not in statistics.snapshot()
    counts = np.array([2, 2], np.int32), np.array([2, 0], np.int32)
    statistics.add(*counts, np.full((2, 3), 0.5))
    numbers = statistics.snapshot()
    assert numbers["acceptance_depth_1"] == 0.5 and numbers["acceptance_depth_2"] == 1.0
    assert numbers["confidence_error"] == pytest.approx((0 + 0.5) / 3)
    assert numbers["mean_accepted_length"] == 2.0
