"""Engram: gating of looked-up n-gram memory into the residual streams."""

from __future__ import annotations

import torch
from torch import Tensor


def engram_gate(
    x: Tensor,
    kv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    norm_eps: float,
    clamp: float,
    mask: Tensor | None,
) -> Tensor:
    """See the interface."""
    streams, dim = x.shape[1:]
    keys, value = kv.float().split([streams * dim, dim], -1)
    keys, query = keys.unflatten(-1, (streams, dim)), x.float()
    rstd_x = torch.rsqrt(query.square().mean(-1) + norm_eps)
    rstd_key = torch.rsqrt(keys.square().mean(-1) + norm_eps)
    dot = (query * (q_weight.float() * k_weight.float()) * keys).sum(-1) * rstd_x * rstd_key * dim**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(clamp).sqrt(), dot))
    if mask is not None:
        gate = gate.masked_fill(~mask[:, None], 0.0)
    out: Tensor = query + gate[:, :, None] * value[:, None, :]
    return out.to(x.dtype)
