"""Rotary frequencies under every scaling of :mod:`.rope`."""

from __future__ import annotations

import math

from torch import Tensor

from deepinfer_kernels.modules import inverse_frequencies

from .rope import Llama3Config, RopeConfig


def rotary_frequencies(config: RopeConfig, dim: int) -> Tensor:
    """``[dim/2]`` f32, radians per token."""
    frequencies = inverse_frequencies(config, dim)
    if config.linear is not None:
        return frequencies / config.linear
    return frequencies if config.llama3 is None else _by_wavelength(frequencies, config.llama3)


def _by_wavelength(frequencies: Tensor, config: Llama3Config) -> Tensor:
    turns = config.original_max_position / (2 * math.pi / frequencies)
    kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    kept = kept.clamp(0, 1)
    return frequencies / config.factor * (1 - kept) + frequencies * kept
