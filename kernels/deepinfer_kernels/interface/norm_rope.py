"""RMS norm and rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.interface import checks


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> None:
    """``x [N,D]`` bf16 or f32, ``weight [D]`` → bf16 ``[N,D]``: ``x / sqrt(mean(x²) + eps) · weight`` in f32,
    one rounding (Zhang & Sennrich 2019, arXiv:1910.07467)."""
    _, dim = checks.tensor("x", x, (None, None), *checks.FLOATS)
    checks.tensor("weight", weight, (dim,), *checks.FLOATS)


def rope_table(positions: Tensor, inv_freq: Tensor) -> None:
    """``positions [N]`` int64, ``inv_freq [R/2]`` f32 (radians per token) → ``(cos, sin)``, each ``[N,R/2]`` f32."""
    checks.tensor("positions", positions, (None,), torch.int64)
    checks.tensor("inv_freq", inv_freq, (None,), torch.float32)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
    """``x [N,H,D]`` bf16 → the same with adjacent pairs of the trailing ``R`` dims rotated (back if ``inverse``).

    ``cos``, ``sin``: ``[N,R/2]`` f32 (Su et al. 2021, arXiv:2104.09864).
    """
    _rotation(x, cos, sin)


def apply_rope_half_split(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """``x [N,H,D]`` bf16 → the same with dimension ``i`` of the leading ``R`` turned together with ``i + R/2``.

    The other layout of :func:`apply_rope`, that of GPT-NeoX and of published Llama checkpoints. ``cos``, ``sin``:
    ``[N,R/2]`` f32.
    """
    _rotation(x, cos, sin)


def _rotation(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    rows, _, dim = checks.tensor("x", x, (None, None, None), torch.bfloat16)
    _, half = checks.tensor("cos", cos, (rows, None), torch.float32)
    checks.tensor("sin", sin, (rows, half), torch.float32)
    if 2 * half > dim:
        raise ValueError(f"cos must have at most {dim // 2} columns for a head dimension of {dim}, got {half}")
