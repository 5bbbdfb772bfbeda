"""Manifold-constrained hyper-connections: ``m`` residual streams of width ``d`` (mHC, Xie et al. 2025,
arXiv:2512.24880; after Hyper-Connections, Zhu et al. 2024, arXiv:2409.19606)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.interface import checks


def hyper_connection_mix(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, sinkhorn_iters: int, eps: float, norm_eps: float
) -> None:
    """``x [N,m,d]`` bf16, ``fn [m(2+m), m·d]``, ``base [m(2+m)]``, ``scale [3]`` f32 → ``pre [N,m]``,
    ``post [N,m]``, ``comb [N,m,m]`` f32.

    One RMS statistic over all streams; ``pre = σ + eps``, ``post = 2σ``; ``comb`` is a row softmax made
    doubly stochastic by ``sinkhorn_iters`` Sinkhorn–Knopp rounds (1967), rows and columns in turn, columns last.
    """
    _, streams, dim = checks.tensor("x", x, (None, None, None), torch.bfloat16)
    mixes = streams * (2 + streams)
    checks.tensor("fn", fn, (mixes, streams * dim), torch.float32)
    checks.tensor("base", base, (mixes,), torch.float32)
    checks.tensor("scale", scale, (3,), torch.float32)
    checks.positive("sinkhorn_iters", sinkhorn_iters)


def hyper_connection_collapse(x: Tensor, pre: Tensor) -> None:
    """``x [N,m,d]`` bf16, ``pre [N,m]`` f32 → bf16 ``[N,d]``: ``Σ_i pre_i·x_i``."""
    rows, streams, _ = checks.tensor("x", x, (None, None, None), torch.bfloat16)
    checks.tensor("pre", pre, (rows, streams), torch.float32)


def hyper_connection_expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> None:
    """``y [N,d]``, ``x [N,m,d]`` bf16, ``post [N,m]``, ``comb [N,m,m]`` f32 → bf16 ``[N,m,d]``:
    stream ``j`` is ``post_j·y + Σ_i comb[i,j]·x_i``."""
    rows, streams, dim = checks.tensor("x", x, (None, None, None), torch.bfloat16)
    checks.tensor("y", y, (rows, dim), torch.bfloat16)
    checks.tensor("post", post, (rows, streams), torch.float32)
    checks.tensor("comb", comb, (rows, streams, streams), torch.float32)
