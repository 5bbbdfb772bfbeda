"""Mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.interface import checks
from deepinfer_kernels.weights import Weight


def route_experts(x: Tensor, weight: Tensor, bias: Tensor, k: int, route_scale: float, normalize: bool) -> None:
    """``x [N,d]`` bf16, ``weight [E,d]`` bf16, ``bias [E]`` f32 → ``ids [N,k]`` int32, ``weights [N,k]`` f32.

    Scores ``√softplus(x·Wᵀ)``; the bias only selects (ties: lowest id), in descending order of the biased
    score; weights are the unbiased scores, normalised over the ``k`` if ``normalize`` and ``k > 1``, times
    ``route_scale``.
    """
    _, dim = checks.tensor("x", x, (None, None), torch.bfloat16)
    experts, _ = checks.tensor("weight", weight, (None, dim), torch.bfloat16)
    checks.tensor("bias", bias, (experts,), torch.float32)
    if not 1 <= k <= experts:
        raise ValueError(f"k must be in 1..{experts} (the number of experts), got {k}")


def swiglu(a: Tensor, b: Tensor, limit: float) -> None:
    """``a``, ``b`` ``[N,I]`` bf16 → bf16 ``[N,I]``: ``silu(min(a, limit)) · clamp(b, ±limit)`` in f32."""
    shape = checks.tensor("a", a, (None, None), torch.bfloat16)
    checks.tensor("b", b, shape, torch.bfloat16)


def moe_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w1: Weight,
    w2: Weight,
    w3: Weight,
    limit: float,
    quantize_input: bool,
) -> None:
    """``x [N,d]`` bf16, ``ids [N,k]`` int32, ``weights [N,k]`` f32; stacks ``w1``, ``w3`` ``(E,I,d)`` and ``w2``
    ``(E,d,I)`` → f32 ``[N,d]``, the sum over a row's experts in ascending id.

    Per expert: bf16 ``a = x·w1ᵀ``, ``b = x·w3ᵀ``; bf16 ``h = weight·silu(min(a, limit))·clamp(b, ±limit)``;
    bf16 ``h·w2ᵀ``. With ``quantize_input``, ``x`` and ``h`` go through e4m3 per 32.
    """
    rows, dim = checks.tensor("x", x, (None, None), torch.bfloat16)
    _, k = checks.tensor("ids", ids, (rows, None), torch.int32)
    checks.tensor("weights", weights, (rows, k), torch.float32)
    experts, inner, inputs = checks.weight("w1", w1, (None,))
    if inputs != dim:
        raise ValueError(f"w1 must take {dim} inputs like x, got {inputs}")
    for name, value, shape in (("w3", w3, (experts, inner, dim)), ("w2", w2, (experts, dim, inner))):
        if (actual := checks.weight(name, value, (None,))) != shape:
            raise ValueError(f"{name} must have shape {shape} to go with w1, got {actual}")
