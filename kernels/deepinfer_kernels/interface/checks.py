"""Argument checks shared by the op interfaces. Each failure names the argument, what came and what is expected."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.codecs import CODECS
from deepinfer_kernels.weights import SCALE_GROUP, DenseWeight, Fp4Weight, Fp8Weight, Weight

FLOATS = (torch.bfloat16, torch.float32)


def tensor(name: str, value: Tensor, shape: tuple[int | None, ...], *dtypes: torch.dtype) -> tuple[int, ...]:
    """Check rank, fixed sizes (``None`` = any), dtype and contiguity; return the shape."""
    # Some hundred calls a step: decide first, explain only what is wrong.
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    actual = value.shape
    if len(actual) == len(shape) and value.dtype in dtypes and value.is_contiguous():
        for wanted, size in zip(shape, actual, strict=True):
            if wanted is not None and wanted != size:
                break
        else:
            return actual
    raise _mismatch(name, value, shape, dtypes)


def _mismatch(
    name: str, value: Tensor, shape: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...]
) -> TypeError | ValueError:
    """What is wrong with a tensor that failed the check: its dtype, its shape or its strides."""
    if value.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        return TypeError(f"{name} must have dtype {expected}, got {value.dtype}")
    actual = list(value.shape)
    if len(actual) != len(shape) or any(w not in (None, a) for w, a in zip(shape, actual, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        return ValueError(f"{name} must have shape [{wanted}], got {actual}")
    return ValueError(f"{name} must be contiguous, got strides {value.stride()} for shape {actual}")


def weight(name: str, value: Weight, lead: tuple[int | None, ...] = ()) -> tuple[int, ...]:
    """Check a weight's parts against each other; return ``(*lead, M, K)``."""
    rank = (*lead, None, None)
    if isinstance(value, DenseWeight):
        return tensor(f"{name}.data", value.data, rank, *FLOATS)
    if isinstance(value, Fp8Weight):
        *outer, rows, cols = tensor(f"{name}.data", value.data, rank, torch.uint8)
        blocks = (-(-rows // SCALE_GROUP), -(-cols // SCALE_GROUP))
        tensor(f"{name}.scale", value.scale, (*outer, *blocks), torch.uint8)
        return (*outer, rows, cols)
    if isinstance(value, Fp4Weight):
        *outer, rows, half = tensor(f"{name}.data", value.data, rank, torch.uint8)
        multiple(f"{name} inputs", 2 * half, SCALE_GROUP)
        tensor(f"{name}.scale", value.scale, (*outer, rows, 2 * half // SCALE_GROUP), torch.uint8)
        return (*outer, rows, 2 * half)
    raise TypeError(f"{name} must be a DenseWeight, Fp8Weight or Fp4Weight, got {type(value).__name__}")


def multiple(name: str, value: int, of: int) -> None:
    """Check divisibility."""
    if value % of:
        raise ValueError(f"{name} must be a multiple of {of}, got {value}")


def positive(name: str, value: int) -> None:
    """Check that a count is at least 1."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def codec(name: str, dim: int) -> int:
    """Check a codec's name and that ``dim`` fits its groups; return its record size in bytes."""
    if name not in CODECS:
        raise ValueError(f"codec must be one of {sorted(CODECS)}, got {name!r}")
    multiple(f"dimension stored as {name}", dim, CODECS[name].group)
    return CODECS[name].record_bytes(dim)
