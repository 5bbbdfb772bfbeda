"""Linear layers. Products accumulate in f64 and round once, so no summation order is preferred."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.reference.codec import dequantize_weight, quantize_dequantize
from deepinfer_kernels.weights import Weight


def linear(x: Tensor, weight: Weight, out_dtype: torch.dtype) -> Tensor:
    """See the interface."""
    return (x.double() @ dequantize_weight(weight).double().T).to(out_dtype)


def linear_quantized(x: Tensor, weight: Weight) -> Tensor:
    """See the interface."""
    return linear(quantize_dequantize(x, "fp8_e8m0_32"), weight, torch.bfloat16)


def grouped_linear(x: Tensor, weight: Weight, groups: int) -> Tensor:
    """See the interface."""
    stacked = dequantize_weight(weight).double().unflatten(0, (groups, -1))
    return torch.einsum("ngk,grk->ngr", x.double(), stacked).to(torch.bfloat16)
