"""What a step costs, as a function of its size, learned from the steps that are run."""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

#: The weight of a new measurement, once there are some.
_RATE = 0.1
#: A measurement counts at most this many times the mean: a stalled machine says nothing about sizes.
_OUTLIER = 4.0


@attrs.define(slots=True)
class _Point:
    size: float = 0.0
    seconds: float = 0.0
    count: int = 0
    time: int = 0


class CostCurve:
    """Seconds by size; a smoothed measurement per size, few sizes sharing one where sizes are large.

    As a function it is the largest convex, non-decreasing one below the measurements, continued in a straight line:
    so a few noisy ones make no steps in it. Without any measurement it is 0.
    """

    def __init__(self) -> None:
        self._points: dict[int, _Point] = {}
        self._hull: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._time = 0

    def add(self, size: int, seconds: float) -> None:
        """A measurement, of a size of at least 1."""
        self._time += 1
        point = self._points.setdefault(_bucket(size), _Point())
        if point.count:
            seconds = min(seconds, _OUTLIER * point.seconds)
        point.count += 1
        point.time = self._time
        rate = max(1 / point.count, _RATE)
        point.size += rate * (size - point.size)
        point.seconds += rate * (seconds - point.seconds)
        self._hull = None

    def age(self, size: int) -> float:
        """Measurements since the last one near this size; infinite without any."""
        point = self._points.get(_bucket(size))
        return math.inf if point is None else self._time - point.time

    def __call__(self, sizes: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Seconds for each size."""
        if not self._points:
            return np.zeros(np.shape(sizes))
        if self._hull is None:
            self._hull = _lower_hull(sorted((point.size, point.seconds) for point in self._points.values()))
        xs, ys = self._hull
        seconds = np.interp(sizes, xs, ys)
        if len(xs) > 1:
            slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
            seconds = seconds + slope * np.maximum(np.asarray(sizes) - xs[-1], 0)
        return np.asarray(seconds, np.float64)


def _bucket(size: int) -> int:
    """Sizes up to 8 by themselves, then four to the octave."""
    return size if size <= 8 else int(4 * math.log2(size)) - 4


def _lower_hull(points: list[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    least, rising = math.inf, []
    for size, seconds in reversed(points):
        least = min(least, seconds)
        rising.append((size, least))
    hull: list[tuple[float, float]] = []
    for x, y in reversed(rising):
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return np.array([x for x, _ in hull]), np.array([y for _, y in hull])


def _is_above(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether ``middle`` lies on or above the line between the others."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])
