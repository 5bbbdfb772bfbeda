"""Mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.cpu.arrays import native_weight
from deepinfer_kernels.cpu.bounds import within
from deepinfer_kernels.weights import Weight


def route_experts(
    x: Tensor, weight: Tensor, bias: Tensor, k: int, route_scale: float, normalize: bool
) -> tuple[Tensor, Tensor]:
    """See the interface."""
    rows, dim = x.shape
    ids = torch.empty(rows, k, dtype=torch.int32)
    weights = torch.empty(rows, k)
    inputs = x.data_ptr(), weight.data_ptr(), bias.data_ptr()
    outputs = ids.data_ptr(), weights.data_ptr()
    _cpu.route_experts(*inputs, k, route_scale, normalize, *outputs, rows, weight.shape[0], dim)
    return ids, weights


def swiglu(a: Tensor, b: Tensor, limit: float) -> Tensor:
    """See the interface."""
    out = torch.empty_like(a)
    _cpu.swiglu(a.data_ptr(), b.data_ptr(), limit, out.data_ptr(), *a.shape)
    return out


def moe_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Weight,
    w2: Weight,
    w3: Weight,
    limit: float,
    quantize_input: bool,
) -> Tensor:
    """See the interface."""
    within("ids", ids, w1.shape[0])
    out = torch.empty(x.shape, dtype=torch.float32)
    rows, k = ids.shape
    inputs = x.data_ptr(), ids.data_ptr(), weights.data_ptr()
    stacks = native_weight(w1), native_weight(w2), native_weight(w3)
    _cpu.moe_experts(*inputs, *stacks, limit, quantize_input, out.data_ptr(), rows, k, w1.shape[0])
    return out
