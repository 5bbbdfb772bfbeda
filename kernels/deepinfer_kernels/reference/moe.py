"""Mixture of experts: router, clamped SwiGLU and the routed experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer_kernels.reference.codec import quantize_dequantize
from deepinfer_kernels.reference.linear import linear
from deepinfer_kernels.weights import Weight


def route_experts(
    x: Tensor, weight: Tensor, bias: Tensor, k: int, route_scale: float, normalize: bool
) -> tuple[Tensor, Tensor]:
    """See the interface."""
    scores = functional.softplus((x.double() @ weight.double().T).float()).sqrt()
    # A stable descending sort keeps the lowest index first among equals.
    ids = (scores + bias).argsort(dim=-1, descending=True, stable=True)[:, :k]
    weights = scores.gather(-1, ids)
    if normalize and k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids.to(torch.int32), weights * route_scale


def _swiglu(a: Tensor, b: Tensor, limit: float, route_weight: Tensor | None = None) -> Tensor:
    gate = a.float().clamp_max(limit)
    hidden = functional.silu(gate) * b.float().clamp(-limit, limit)
    if route_weight is not None:
        hidden = route_weight * hidden
    return hidden.to(torch.bfloat16)


def swiglu(a: Tensor, b: Tensor, limit: float) -> Tensor:
    """See the interface."""
    return _swiglu(a, b, limit)


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
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    source = quantize_dequantize(x, "fp8_e8m0_32") if quantize_input else x
    # Every expert runs every row: which rows chose it is known to the device only.
    for expert in range(w1.shape[0]):
        chosen = ids == expert
        weight = weights.masked_fill(~chosen, 0).sum(-1, keepdim=True)
        a = linear(source, w1.select(expert), torch.bfloat16)
        b = linear(source, w3.select(expert), torch.bfloat16)
        hidden = _swiglu(a, b, limit, weight)
        if quantize_input:
            hidden = quantize_dequantize(hidden, "fp8_e8m0_32")
        part = linear(hidden, w2.select(expert), torch.bfloat16).float()
        out += torch.where(chosen.any(-1, keepdim=True), part, 0)
    return out
