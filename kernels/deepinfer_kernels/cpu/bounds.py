"""Checks of indices before native code follows them. They read what tensors hold: on the host that costs no waiting.

Some tens of calls a step: the extremes are found natively.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu


def extremes(indices: Tensor) -> tuple[int, int]:
    """Smallest and largest of contiguous int32 or int64 ``indices``; ``(0, -1)``, within all bounds, where there are
    none."""
    count = indices.numel()
    return _cpu.extremes(indices.data_ptr(), indices.dtype == torch.int64, count) if count else (0, -1)


def below(name: str, largest: int, limit: int, of: str) -> None:
    """Check that the largest index does not reach ``limit``; negative ones mean "none" where they are allowed."""
    if largest >= limit:
        raise ValueError(f"{name} must be below {limit} {of}, got {largest}")


def within(name: str, indices: Tensor, limit: int) -> None:
    """Check that every index is in ``0..limit - 1``."""
    smallest, largest = extremes(indices)
    if smallest < 0 or largest >= limit:
        raise ValueError(f"{name} must be in 0..{limit - 1}, got {smallest}..{largest}")


def within_tables(name: str, largest: int, block_tables: Tensor, seq_of_row: Tensor, entries: int) -> None:
    """Check that entries up to the ``largest``, of pages of ``entries``, lie in their sequences' tables."""
    sequences, pages = block_tables.shape
    below("seq_of_row", extremes(seq_of_row)[1], sequences, "(block_tables)")
    below(name, largest, pages * entries, "(entries of block_tables)")
