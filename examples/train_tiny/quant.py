"""The rounding that belongs to the architecture, as straight-through functions.

Each ``*_value`` function maps f32 to the f32 values that the stored format can hold, in plain arithmetic that a
compiler fuses; :func:`straight_through` gives them an identity gradient (arXiv:1308.3432).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

E4M3_MAX, E2M1_MAX = 448.0, 6.0
#: Smallest magnitude that a group of e4m3 values is scaled for.
FP8_FLOOR = 1e-4


def ceil_power_of_two(x: Tensor) -> Tensor:
    """The smallest power of two that is at least ``x``, for positive normal f32 values."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def e4m3_value(x: Tensor) -> Tensor:
    """Round f32 within ±448 to the nearest e4m3 value, ties to even."""
    exponent = (x.abs().contiguous().view(torch.int32) >> 23).clamp_min(127 - 6)
    step = ((exponent - 3) << 23).view(torch.float32)
    return torch.round(x / step) * step


def e2m1_value(x: Tensor) -> Tensor:
    """Round f32 within ±6 to the nearest e2m1 value, ties to even."""
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(x / step) * step


def fp8_groups(x: Tensor) -> Tensor:
    """``[..., K]`` in groups of 32: e4m3 with a power-of-two scale (window keys, inputs, n-gram rows)."""
    groups = x.float().unflatten(-1, (-1, 32))
    scale = ceil_power_of_two(groups.abs().amax(-1, keepdim=True).clamp_min(FP8_FLOOR) * (1 / E4M3_MAX))
    return (e4m3_value(groups / scale) * scale).flatten(-2)


def fp4_groups(x: Tensor) -> Tensor:
    """``[..., K]`` in groups of 32: e2m1 with a power-of-two scale (index queries and keys, expert weights)."""
    groups = x.float().unflatten(-1, (-1, 32))
    scale = ceil_power_of_two(groups.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1 / E2M1_MAX))
    return (e2m1_value((groups / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).flatten(-2)


def fp4_fine_groups(x: Tensor) -> Tensor:
    """``[..., K]`` in groups of 16: e2m1 with an e4m3 scale (compressed keys)."""
    groups = x.float().unflatten(-1, (-1, 16))
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9) * (1 / E2M1_MAX)
    scale = e4m3_value(scale.clamp_max(E4M3_MAX))
    return (e2m1_value((groups / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).flatten(-2)


def fp8_blocks(weight: Tensor) -> Tensor:
    """``[M, K]`` in blocks of 32 x 32: e4m3 with a power-of-two scale (dense weights)."""
    scale = block_scales(weight)
    scale = scale.repeat_interleave(32, 0)[: weight.shape[0]].repeat_interleave(32, 1)[:, : weight.shape[1]]
    return e4m3_value(weight.float() / scale) * scale


def block_scales(weight: Tensor) -> Tensor:
    """The scales of :func:`fp8_blocks`, ``[ceil(M/32), ceil(K/32)]``."""
    rows, cols = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -cols % 32, 0, -rows % 32))
    blocks = padded.unflatten(1, (-1, 32)).unflatten(0, (-1, 32))
    return ceil_power_of_two(blocks.abs().amax((1, 3)).clamp_min(FP8_FLOOR) * (1 / E4M3_MAX))


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        return rounding(x).to(x.dtype)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def straight_through(x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    """``rounding(x)`` in the type of ``x``, with the gradient of the identity."""
    return _StraightThrough.apply(x, rounding)
