"""Linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.cpu.arrays import array, native_weight
from deepinfer_kernels.weights import Weight


def _linear(x: Tensor, weight: Weight, out_dtype: torch.dtype, quantize: bool) -> Tensor:
    native = native_weight(weight)
    out = torch.empty(x.shape[0], native[3], dtype=out_dtype)
    _cpu.linear(array(x), native, array(out), x.shape[0], quantize)
    return out


def linear(x: Tensor, weight: Weight, out_dtype: torch.dtype) -> Tensor:
    """See the interface."""
    return _linear(x, weight, out_dtype, quantize=False)


def linear_quantized(x: Tensor, weight: Weight) -> Tensor:
    """See the interface."""
    return _linear(x, weight, torch.bfloat16, quantize=True)


def grouped_linear(x: Tensor, weight: Weight, groups: int) -> Tensor:
    """See the interface."""
    native = native_weight(weight)
    out = torch.empty(x.shape[0], groups, native[3] // groups, dtype=torch.bfloat16)
    _cpu.grouped_linear(x.data_ptr(), native, out.data_ptr(), x.shape[0], groups)
    return out
