"""What a row's edits make of its logits, for samplers that have to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core.interfaces.sampler import LogitEdits, SamplingRow

_LARGEST = float(np.finfo(np.float32).max)


def edited_logits(logits: NDArray[np.float32], row: SamplingRow) -> NDArray[np.float32]:
    """A row's ``logits [V]`` after bias, penalties and masks, before temperature; -inf for what the masks exclude.

    A copy, and bit for bit what the core's sampler draws from.
    """
    result, edits = logits.copy(), row.edits
    if edits is not None:
        result = _edited(result, edits)
    if row.mask is not None:
        bits = np.unpackbits(row.mask.astype("<i4").view(np.uint8), count=len(result), bitorder="little")
        result[bits == 0] = -np.inf
    return result


def _edited(result: NDArray[np.float32], edits: LogitEdits) -> NDArray[np.float32]:
    result[edits.bias_ids] = _rounded(result[edits.bias_ids].astype(np.float64) + edits.bias)
    seen = result[edits.seen_ids].astype(np.float64)
    seen = np.where(seen > 0, seen / edits.repetition_penalty, seen * edits.repetition_penalty)
    taken = edits.frequency_penalty * edits.seen_counts + np.where(edits.seen_counts > 0, edits.presence_penalty, 0.0)
    result[edits.seen_ids] = _rounded(seen - taken)
    if len(edits.allowed):
        only = np.full_like(result, -np.inf)
        only[edits.allowed] = result[edits.allowed]
        result = only
    result[edits.banned] = -np.inf
    return result


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32: what overflows upwards becomes the largest number, what overflows downwards -inf."""
    with np.errstate(over="ignore"):
        return np.minimum(values, _LARGEST).astype(np.float32)
