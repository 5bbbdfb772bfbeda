"""Checks of indices before native code follows them. They read what tensors hold: on the host that costs no waiting.

In NumPy: torch would start its threads for a maximum.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Indices = NDArray[Any]


def below(name: str, indices: Indices, limit: int, of: str) -> None:
    """Check that no index reaches ``limit``; negative ones mean "none" where they are allowed."""
    if indices.size and (largest := int(indices.max())) >= limit:
        raise ValueError(f"{name} must be below {limit} {of}, got {largest}")


def within(name: str, indices: Indices, limit: int) -> None:
    """Check that every index is in ``0..limit - 1``."""
    if not indices.size:
        return
    smallest, largest = int(indices.min()), int(indices.max())
    if smallest < 0 or largest >= limit:
        raise ValueError(f"{name} must be in 0..{limit - 1}, got {smallest}..{largest}")


def within_tables(name: str, last: Indices, tables: tuple[int, ...], seq_of_row: Indices, entries: int) -> None:
    """Check that entries up to ``last``, of pages of ``entries``, lie in block tables of shape ``tables``."""
    sequences, pages = tables
    if last.size:
        below("seq_of_row", seq_of_row, sequences, "(block_tables)")
        below(name, last, pages * entries, "(entries of block_tables)")
