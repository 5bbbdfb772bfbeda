"""Manifold-constrained hyper-connections (mHC): mixing coefficients, collapse and expand."""

from __future__ import annotations

import torch
from torch import Tensor


def hyper_connection_mix(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, sinkhorn_iters: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See the interface."""
    streams = x.shape[1]
    flat = x.flatten(1).float()
    rstd = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    mixes = (flat.double() @ fn.double().T).float() * rstd
    pre_raw, post_raw, comb_raw = mixes.split([streams, streams, streams * streams], -1)
    pre_base, post_base, comb_base = base.split([streams, streams, streams * streams])
    pre = torch.sigmoid(pre_raw * scale[0] + pre_base) + eps
    post = 2 * torch.sigmoid(post_raw * scale[1] + post_base)
    comb = (comb_raw * scale[2] + comb_base).unflatten(-1, (streams, streams))
    # Spelled out: torch's fused softmax rounds differently from the published kernel.
    comb = (comb - comb.amax(-1, keepdim=True)).exp()
    comb = comb / comb.sum(-1, keepdim=True) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(sinkhorn_iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


def hyper_connection_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """See the interface."""
    return (pre[:, :, None] * x.float()).sum(1).to(x.dtype)


def hyper_connection_expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See the interface."""
    mixed = (comb[:, :, :, None] * x.float()[:, :, None, :]).sum(1)
    return (post[:, :, None] * y.float()[:, None, :] + mixed).to(x.dtype)
