"""Manifold-constrained hyper-connections."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu


def hyper_connection_mix(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, sinkhorn_iters: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See the interface."""
    rows, streams, _ = x.shape
    pre, post = torch.empty(rows, streams), torch.empty(rows, streams)
    comb = torch.empty(rows, streams, streams)
    inputs = x.data_ptr(), fn.data_ptr(), base.data_ptr(), scale.data_ptr()
    outputs = pre.data_ptr(), post.data_ptr(), comb.data_ptr()
    _cpu.hyper_connection_mix(*inputs, sinkhorn_iters, eps, norm_eps, *outputs, *x.shape)
    return pre, post, comb


def hyper_connection_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """See the interface."""
    out = torch.empty(x.shape[0], x.shape[2], dtype=torch.bfloat16)
    _cpu.hyper_connection_collapse(x.data_ptr(), pre.data_ptr(), out.data_ptr(), *x.shape)
    return out


def hyper_connection_expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See the interface."""
    out = torch.empty_like(x)
    inputs = y.data_ptr(), x.data_ptr(), post.data_ptr(), comb.data_ptr()
    _cpu.hyper_connection_expand(*inputs, out.data_ptr(), *x.shape)
    return out
