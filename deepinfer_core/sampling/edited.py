"""What a batch makes of its logits, for samplers that have to see it, and a batch of which more is excluded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core.interfaces.sampler import IdLists, SamplingBatch, ValueLists

_LARGEST = float(np.finfo(np.float32).max)


def edited_logits(logits: NDArray[np.float32], batch: SamplingBatch) -> NDArray[np.float32]:
    """``logits [R, V]`` after bias, penalties and masks, before temperature; -inf for what the masks exclude.

    A copy, and bit for bit what the core's sampler draws from. A row without any of them is as it was.
    """
    result = logits.copy()
    if batch.bias is not None:
        rows, ids, bias = _entries(batch.bias)
        result[rows, ids] = _rounded(result[rows, ids].astype(np.float64) + bias)
    if batch.seen is not None and batch.penalties is not None:
        rows, ids, counts = _entries(batch.seen)
        result[rows, ids] = _penalized(result[rows, ids], counts, *batch.penalties[rows].T)
    if batch.allowed is not None:
        rows, ids = _entries(batch.allowed)
        kept = result[rows, ids]
        result[np.diff(batch.allowed[0]) > 0] = -np.inf
        result[rows, ids] = kept
    if batch.banned is not None:
        rows, ids = _entries(batch.banned)
        result[rows, ids] = -np.inf
    if batch.masks is not None:
        which, words = batch.masks
        rows = np.flatnonzero(which >= 0)
        bits = np.unpackbits(_as_bytes(words), axis=1, count=result.shape[1], bitorder="little")
        result[rows] = np.where(bits[which[rows]] == 1, result[rows], -np.inf)
    return result


def narrowed(
    batch: SamplingBatch, rows: NDArray[np.intp] | NDArray[np.bool_], kept: NDArray[np.bool_]
) -> SamplingBatch:
    """The batch, with rows of which only some tokens may be drawn, besides what is excluded already.

    rows: ``[S]`` integers, distinct, in [0, R), or ``[R]`` bool, S of them true; the others stay as they are.
    kept: ``[S, V]`` bool, what may be drawn.

    Raises ValueError for masks of another vocabulary.
    """
    places = np.arange(len(batch))[rows]
    words = _packed(kept)
    which = np.full(len(batch), -1, np.int32)
    if batch.masks is not None:
        which, given = batch.masks[0].copy(), batch.masks[1]
        if given.shape[1] != words.shape[1]:
            raise ValueError(f"masks of {kept.shape[1]} tokens have {words.shape[1]} words, got {given.shape[1]}")
        masked = which[places] >= 0
        words[masked] &= given[which[places[masked]]]
        words = np.concatenate([given, words])
    which[places] = np.arange(len(words) - len(places), len(words))
    return attrs.evolve(batch, masks=(which, words))


def _entries(lists: IdLists | ValueLists) -> tuple[NDArray[Any], ...]:
    """Each id's row, the ids, and what goes with them."""
    offsets, *columns = lists
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), *columns


def _penalized(
    logits: NDArray[np.float32],
    counts: NDArray[np.int32],
    repetition: NDArray[np.float64],
    frequency: NDArray[np.float64],
    presence: NDArray[np.float64],
) -> NDArray[np.float32]:
    seen = logits.astype(np.float64)
    seen = np.where(seen > 0, seen / repetition, seen * repetition)
    return _rounded(seen - (frequency * counts + np.where(counts > 0, presence, 0.0)))


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32: what overflows upwards becomes the largest number, what overflows downwards -inf."""
    with np.errstate(over="ignore"):
        return np.minimum(values, _LARGEST).astype(np.float32)


def _as_bytes(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(words, "<i4").view(np.uint8)


def _packed(kept: NDArray[np.bool_]) -> NDArray[np.int32]:
    """``[S, V]`` bool as words, ``[S, ceil(V / 32)]``."""
    bits = np.zeros((len(kept), -(-kept.shape[1] // 32) * 4), np.uint8)
    bits[:, : -(-kept.shape[1] // 8)] = np.packbits(kept, axis=1, bitorder="little")
    return bits.view("<i4").astype(np.int32, copy=False)
