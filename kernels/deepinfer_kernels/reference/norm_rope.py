"""RMS norm and rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the interface."""
    value = x.float()
    value = value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    return (value * weight.float()).to(torch.bfloat16)


def rope_table(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """See the interface."""
    angle = (positions.float()[:, None] * inv_freq[None, :]).double()
    return angle.cos().float(), angle.sin().float()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """See the interface."""
    rotary = 2 * cos.shape[-1]
    plain, pairs = x[..., :-rotary], x[..., -rotary:].float().unflatten(-1, (-1, 2))
    cos, sin = cos[:, None, :], (-sin if inverse else sin)[:, None, :]
    real, imag = pairs[..., 0], pairs[..., 1]
    rotated = torch.stack([real * cos - imag * sin, real * sin + imag * cos], -1).flatten(-2)
    return torch.cat([plain, rotated.to(x.dtype)], -1)


def apply_rope_half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See the interface."""
    half = cos.shape[-1]
    real, imag, plain = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = torch.cat([real * cos - imag * sin, real * sin + imag * cos], -1)
    return torch.cat([rotated.to(x.dtype), plain], -1)
