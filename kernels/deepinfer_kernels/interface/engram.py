"""Engram: conditional n-gram memory (Conditional Memory via Scalable Lookup, DeepSeek 2026, arXiv:2601.07372)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.interface import checks


def engram_gate(
    x: Tensor,
    kv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    norm_eps: float,
    clamp: float,
    mask: Tensor | None,
) -> None:
    """``x [N,m,d]`` bf16, ``kv [N,(m+1)d]`` bf16 (one key per stream, then the value), ``q_weight``, ``k_weight``
    ``[m,d]`` bf16, ``mask [N]`` bool (False closes the gate) → bf16 ``[N,m,d]``.

    Per stream ``x + σ(±√max(|dot|, clamp))·value``, ``dot`` the RMS-normed, weighted product of stream and key
    over ``√d``.
    """
    rows, streams, dim = checks.tensor("x", x, (None, None, None), torch.bfloat16)
    checks.tensor("kv", kv, (rows, (streams + 1) * dim), torch.bfloat16)
    checks.tensor("q_weight", q_weight, (streams, dim), torch.bfloat16)
    checks.tensor("k_weight", k_weight, (streams, dim), torch.bfloat16)
    if mask is not None:
        checks.tensor("mask", mask, (rows,), torch.bool)
