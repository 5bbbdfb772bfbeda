"""Rotary frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer_kernels.modules.settings import RopeSettings, YarnSettings


def inverse_frequencies(config: RopeSettings, dim: int) -> Tensor:
    """``[dim/2]`` f32, radians per token: ``theta^(-2i/dim)``, blended by YaRN (arXiv:2309.00071, eq. 23) where set."""
    frequencies = 1.0 / (config.theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim))
    if config.yarn is None:
        return frequencies
    ramp = _ramp(config.yarn, config.theta, dim)
    return frequencies / config.yarn.factor * ramp + frequencies * (1 - ramp)


def _ramp(yarn: YarnSettings, theta: float, dim: int) -> Tensor:
    """How far each pair is interpolated: 0 for fast pairs, 1 for slow ones."""

    def pair_turning(times: float) -> float:
        """The pair (a real number) that turns ``times`` times over the original length."""
        return dim * math.log(yarn.original_max_position / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_turning(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_turning(yarn.beta_slow)), dim - 1)
    # Equal bounds would divide by zero: make the step steep instead.
    width = max(high - low, 0.001)
    return ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / width).clamp(0, 1)
