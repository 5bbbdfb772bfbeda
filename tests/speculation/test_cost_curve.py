"""Steps' costs as learned from measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.speculation.cost_curve import CostCurve

measurements = st.lists(st.tuples(st.integers(1, 600), st.floats(1e-4, 1.0)), min_size=1, max_size=40)


@given(measurements)
def test_the_curve_is_convex_and_rises(samples: list[tuple[int, float]]) -> None:
    curve = CostCurve()
    for size, seconds in samples:
        curve.add(size, seconds)
    values = curve(np.arange(1, 1000))
    assert (np.diff(values) >= -1e-12).all() and (values > 0).all()
    inside = curve(np.arange(min(s for s, _ in samples), 1000))
    assert (np.diff(inside, 2) >= -1e-9).all()
    assert values[0] <= max(seconds for _, seconds in samples)


def test_it_finds_a_floor_and_a_slope() -> None:
    curve, random = CostCurve(), np.random.default_rng(0)
    for _ in range(400):
        size = int(random.integers(1, 65))
        curve.add(size, max(1.0, size / 16) * (1 + 0.02 * random.standard_normal()))
    for size in (1, 4, 12, 32, 64, 128):
        assert float(curve(size)) == pytest.approx(max(1.0, size / 16), rel=0.12)


def test_one_stalled_step_hardly_counts() -> None:
    curve = CostCurve()
    for _ in range(50):
        curve.add(4, 0.01)
    curve.add(4, 5.0)
    assert float(curve(4)) < 0.015


def test_age_counts_measurements_of_other_sizes() -> None:
    curve = CostCurve()
    assert math.isinf(curve.age(3)) and float(curve(3)) == 0.0
    curve.add(3, 0.1)
    for _ in range(5):
        curve.add(40, 0.1)
    assert curve.age(3) == 5 and curve.age(40) == 0 and math.isinf(curve.age(200))
