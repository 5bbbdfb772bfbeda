"""RMS norm and rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.cpu.arrays import array


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the interface."""
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    _cpu.rms_norm(array(x), array(weight), eps, out.data_ptr(), *x.shape)
    return out


def rope_table(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """See the interface."""
    rows, half = positions.shape[0], inv_freq.shape[0]
    cos, sin = torch.empty(rows, half), torch.empty(rows, half)
    _cpu.rope_table(positions.data_ptr(), inv_freq.data_ptr(), cos.data_ptr(), sin.data_ptr(), rows, half)
    return cos, sin


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """See the interface."""
    out = torch.empty_like(x)
    rows, heads, dim = x.shape
    tables = cos.data_ptr(), sin.data_ptr()
    _cpu.apply_rope(x.data_ptr(), *tables, inverse, out.data_ptr(), rows, heads, dim, cos.shape[1])
    return out


def apply_rope_half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See the interface."""
    out = torch.empty_like(x)
    rows, heads, dim = x.shape
    tables = cos.data_ptr(), sin.data_ptr()
    _cpu.apply_rope_half_split(x.data_ptr(), *tables, out.data_ptr(), rows, heads, dim, cos.shape[1])
    return out
