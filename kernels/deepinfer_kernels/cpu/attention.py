"""Compressor, two-level indexer, and attention over window rings, pages and draft blocks."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.cpu.arrays import address
from deepinfer_kernels.cpu.bounds import below, extremes, within, within_tables


def compress_pool(values: Tensor, scores: Tensor, state: Tensor, members: Tensor) -> Tensor:
    """See the interface."""
    (groups, ratio), (rows, dim) = members.shape, values.shape
    smallest, largest = extremes(members)
    below("members", largest, rows, "(rows)")
    below("-1 - members", -1 - smallest, state.shape[0] * state.shape[1], "(places of state)")
    out = torch.empty(groups, dim)
    inputs = values.data_ptr(), scores.data_ptr(), state.data_ptr(), members.data_ptr()
    _cpu.compress_pool(*inputs, out.data_ptr(), groups, dim, ratio)
    return out


def store_compress_state(values: Tensor, scores: Tensor, state: Tensor, places: Tensor) -> None:
    """See the interface."""
    below("places", extremes(places)[1], state.shape[0] * state.shape[1], "(places of state)")
    arrays = values.data_ptr(), scores.data_ptr(), state.data_ptr(), places.data_ptr()
    _cpu.store_compress_state(*arrays, *values.shape)


def index_topk(
    q: Tensor,
    weights: Tensor,
    key_cache: Tensor,
    block_tables: Tensor,
    seq_of_row: Tensor,
    visible: Tensor,
    topk: int,
    candidate_blocks: Tensor | None,
    block_size: int,
    keep_blocks: int,
) -> tuple[Tensor, Tensor | None]:
    """See the interface."""
    rows, heads, dim = q.shape
    within_tables("visible - 1", extremes(visible)[1] - 1, block_tables, seq_of_row, key_cache.shape[1])
    indices = torch.empty(rows, topk, dtype=torch.int32)
    blocks = torch.empty(rows, keep_blocks, dtype=torch.int32) if keep_blocks else None
    candidates = -1 if candidate_blocks is None else candidate_blocks.shape[1]
    sizes = [heads, dim, key_cache.shape[1], block_tables.shape[1], topk, candidates, block_size, keep_blocks]
    keys = key_cache.data_ptr(), block_tables.data_ptr(), seq_of_row.data_ptr(), visible.data_ptr()
    query = (q.data_ptr(), weights.data_ptr(), *keys, address(candidate_blocks), sizes)
    _cpu.index_topk(query, indices.data_ptr(), address(blocks), rows)
    return indices, blocks


def sparse_attention(
    q: Tensor,
    sink: Tensor,
    scale: float,
    window_cache: Tensor,
    chunk_records: Tensor,
    slots: Tensor,
    starts: Tensor,
    positions: Tensor,
    window_size: int,
    compressed_cache: Tensor | None,
    block_tables: Tensor | None,
    seq_of_row: Tensor | None,
    indices: Tensor | None,
) -> Tensor:
    """See the interface."""
    out = torch.empty_like(q)
    places = slots.data_ptr(), starts.data_ptr(), positions.data_ptr()
    window = (window_cache.data_ptr(), chunk_records.data_ptr(), *places, window_cache.shape[1], window_size)
    compressed = (0, 0, 0, 0, 0, 0, 0)
    if compressed_cache is not None:
        assert block_tables is not None and seq_of_row is not None and indices is not None, "they come together"
        within_tables("indices", extremes(indices)[1], block_tables, seq_of_row, compressed_cache.shape[1])
        lists = block_tables.data_ptr(), seq_of_row.data_ptr(), indices.data_ptr()
        sizes = compressed_cache.shape[1], block_tables.shape[1], indices.shape[1]
        compressed = (compressed_cache.data_ptr(), *lists, *sizes)
    _cpu.sparse_attention(q.data_ptr(), sink.data_ptr(), scale, window, compressed, out.data_ptr(), *q.shape)
    return out


def draft_attention(
    q: Tensor,
    sink: Tensor,
    scale: float,
    window_cache: Tensor,
    block_records: Tensor,
    slots: Tensor,
    starts: Tensor,
    window_size: int,
) -> Tensor:
    """See the interface."""
    within("slots", slots, len(window_cache))
    out = torch.empty_like(q)
    places = slots.data_ptr(), starts.data_ptr()
    sizes = window_cache.shape[1], window_size, q.shape[0] // max(len(slots), 1)
    drafts = (window_cache.data_ptr(), block_records.data_ptr(), *places, *sizes)
    _cpu.draft_attention(q.data_ptr(), sink.data_ptr(), scale, drafts, out.data_ptr(), *q.shape)
    return out


def gathered_attention(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor, scale: float) -> Tensor:
    """The softmax of :func:`sparse_attention` over plain keys.

    ``q [N,H,D]``, ``keys [L,D]`` bf16 (also the values), ``indices [N,K]`` int32 (−1 = an empty place of the
    list), ``sink [H]`` f32 → bf16 ``[N,H,D]``. ``D`` is a multiple of 16.
    """
    out = torch.empty_like(q)
    rows, heads, dim = q.shape
    inputs = q.data_ptr(), keys.data_ptr(), indices.data_ptr(), sink.data_ptr()
    sizes = rows, heads, dim, keys.shape[0], indices.shape[1]
    _cpu.gathered_attention(*inputs, scale, out.data_ptr(), *sizes)
    return out


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    scale: float,
    block_tables: Tensor,
    seq_of_row: Tensor,
    positions: Tensor,
    window_size: int | None,
) -> Tensor:
    """See the interface."""
    within_tables("positions", extremes(positions)[1], block_tables, seq_of_row, key_cache.shape[2])
    out = torch.empty_like(q)
    caches = key_cache.data_ptr(), value_cache.data_ptr()
    places = block_tables.data_ptr(), seq_of_row.data_ptr(), positions.data_ptr()
    sizes = key_cache.shape[1], key_cache.shape[2], block_tables.shape[1], window_size or sys.maxsize
    _cpu.paged_attention(q.data_ptr(), scale, (*caches, *places, *sizes), out.data_ptr(), *q.shape)
    return out
