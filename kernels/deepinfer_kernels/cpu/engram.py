"""Engram: gating of looked-up n-gram memory into the residual streams."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.cpu.arrays import address


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
    out = torch.empty_like(x)
    inputs = x.data_ptr(), kv.data_ptr(), q_weight.data_ptr(), k_weight.data_ptr()
    _cpu.engram_gate(*inputs, norm_eps, clamp, address(mask), out.data_ptr(), *x.shape)
    return out
