"""Linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.weights import DenseWeight, Fp8Weight, Weight

#: Storage formats as the extension numbers them.
_BF16, _F32, _FP8, _FP4 = range(4)


def native_weight(weight: Weight) -> tuple[int, int, int, int, int]:
    """``(format, data address, scale address, M, K)`` of a weight or a stack of them."""
    rows, inputs = weight.shape[-2:]
    if isinstance(weight, DenseWeight):
        kind = _F32 if weight.data.dtype == torch.float32 else _BF16
        return kind, weight.data.data_ptr(), 0, rows, inputs
    kind = _FP8 if isinstance(weight, Fp8Weight) else _FP4
    return kind, weight.data.data_ptr(), weight.scale.data_ptr(), rows, inputs


def _linear(x: Tensor, weight: Weight, out_dtype: torch.dtype, quantize: bool) -> Tensor:
    native = native_weight(weight)
    out = torch.empty(x.shape[0], native[3], dtype=out_dtype)
    f32_in, f32_out = x.dtype == torch.float32, out_dtype == torch.float32
    _cpu.linear(x.data_ptr(), f32_in, native, out.data_ptr(), f32_out, x.shape[0], quantize)
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
