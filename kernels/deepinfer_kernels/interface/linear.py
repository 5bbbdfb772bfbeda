"""Linear layers over bf16, fp8 and fp4 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.interface import checks
from deepinfer_kernels.weights import SCALE_GROUP, Weight


def linear(x: Tensor, weight: Weight, out_dtype: torch.dtype) -> None:
    """``x [N,K]`` bf16 or f32, ``weight`` of shape ``(M, K)`` → ``[N,M]`` of ``out_dtype`` (bf16 or f32).

    f32 accumulation, one rounding. The input is taken as it is, whatever the weight's format.
    """
    _, inputs = checks.weight("weight", weight)
    checks.tensor("x", x, (None, inputs), *checks.FLOATS)
    if out_dtype not in checks.FLOATS:
        raise TypeError(f"out_dtype must be torch.bfloat16 or torch.float32, got {out_dtype}")


def linear_quantized(x: Tensor, weight: Weight) -> None:
    """``x [N,K]`` bf16 quantised to e4m3 per 32 inputs, then :func:`linear` → ``[N,M]`` bf16."""
    _, inputs = checks.weight("weight", weight)
    checks.multiple("inputs of a quantised linear", inputs, SCALE_GROUP)
    checks.tensor("x", x, (None, inputs), torch.bfloat16)


def grouped_linear(x: Tensor, weight: Weight, groups: int) -> None:
    """``x [N,G,K]`` bf16, ``weight`` ``(G*R, K)`` whose rows ``g*R…`` belong to group ``g`` → ``[N,G,R]`` bf16.

    The input is not quantised.
    """
    rows, inputs = checks.weight("weight", weight)
    checks.multiple("rows of a grouped weight", rows, groups)
    checks.tensor("x", x, (None, groups, inputs), torch.bfloat16)
