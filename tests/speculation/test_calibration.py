"""Confidences become probabilities that come true."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer_core.speculation.calibration import Calibration


@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (0.25, 0.0), (0.5, -3.0), (2.0, 1.0), (0.0, -2.0)])
def test_it_finds_scale_and_bias(scale: float, bias: float) -> None:
    calibration, random = Calibration(), np.random.default_rng(0)
    for _ in range(400):
        odds = random.normal(0, 2, 8).astype(np.float32)
        calibration.update(odds, random.random(8) < 1 / (1 + np.exp(-(scale * odds + bias))))
    odds = np.array([-3, -1, 0, 1, 3], np.float32)
    expected = 1 / (1 + np.exp(-(scale * odds + bias)))
    assert calibration.probabilities(odds) == pytest.approx(expected, abs=0.06)


def test_confidences_count_as_they_are_until_there_is_evidence() -> None:
    calibration = Calibration()
    calibration.update(np.empty(0, np.float32), np.empty(0, bool))
    odds = np.array([-100, 0, 1, 100], np.float32)
    assert calibration.probabilities(odds) == pytest.approx([0, 0.5, 0.7311, 1], abs=1e-4)


def test_wild_confidences_do_no_harm() -> None:
    calibration = Calibration()
    for value in (np.inf, -np.inf, 1e30, -1e30, 0.0):
        calibration.update(np.full(4, value, np.float32), np.array([True, False, False, True]))
    assert np.isfinite(calibration.probabilities(np.array([np.inf, -np.inf, 0, 5], np.float32))).all()
