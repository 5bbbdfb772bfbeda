"""What a batch makes of a row's logits, for samplers that have to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core.interfaces.sampler import IdLists, SamplingBatch, ValueLists

_LARGEST = float(np.finfo(np.float32).max)


def edited_logits(logits: NDArray[np.float32], batch: SamplingBatch, row: int) -> NDArray[np.float32]:
    """A row's ``logits [V]`` after bias, penalties and masks, before temperature; -inf for what the masks exclude.

    A copy, and bit for bit what the core's sampler draws from.
    """
    result = logits.copy()
    if batch.bias is not None:
        ids, bias = _list_of(batch.bias, row)
        result[ids] = _rounded(result[ids].astype(np.float64) + bias)
    if batch.seen is not None and batch.penalties is not None:
        ids, counts = _list_of(batch.seen, row)
        _penalize(result, ids, counts, batch.penalties[row])
    if batch.allowed is not None and len(only := _list_of(batch.allowed, row)[0]):
        kept = result[only]
        result[:] = -np.inf
        result[only] = kept
    if batch.banned is not None:
        result[_list_of(batch.banned, row)[0]] = -np.inf
    if batch.masks is not None and (which := int(batch.masks[0][row])) >= 0:
        words = batch.masks[1][which]
        bits = np.unpackbits(words.astype("<i4").view(np.uint8), count=len(result), bitorder="little")
        result[bits == 0] = -np.inf
    return result


def _list_of(lists: IdLists | ValueLists, row: int) -> list[NDArray[Any]]:
    offsets, *columns = lists
    return [column[offsets[row] : offsets[row + 1]] for column in columns]


def _penalize(
    result: NDArray[np.float32], ids: NDArray[np.int32], counts: NDArray[np.int32], penalties: NDArray[np.float64]
) -> None:
    repetition, frequency, presence = penalties.tolist()
    seen = result[ids].astype(np.float64)
    seen = np.where(seen > 0, seen / repetition, seen * repetition)
    result[ids] = _rounded(seen - (frequency * counts + np.where(counts > 0, presence, 0.0)))


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32: what overflows upwards becomes the largest number, what overflows downwards -inf."""
    with np.errstate(over="ignore"):
        return np.minimum(values, _LARGEST).astype(np.float32)
