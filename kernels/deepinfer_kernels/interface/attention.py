"""Compressor, two-level indexer, and attention over window rings, pages and draft blocks.

Rows come from several sequences, each with one contiguous chunk of positions. A position inside the chunk
is read from the chunk's own rows, an earlier one from the sequence's state slot (a ring) or its pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.codecs import COMPRESSED_CODEC, INDEX_CODEC, WINDOW_CODEC
from deepinfer_kernels.interface import checks


def _chunk_rows(rows: int, **columns: Tensor) -> None:
    for name, column in columns.items():
        checks.tensor(name, column, (rows,), torch.int32)


def compress_pool(values: Tensor, scores: Tensor, state: Tensor, members: Tensor) -> None:
    """``values``, ``scores`` ``[N,D]`` f32; ``state [slots, ring, 2, D]`` f32 (value, score of rows of earlier steps);
    ``members [G,ratio]`` int64, who is pooled: a row, or ``-1 - place`` for the flat place ``slot·ring + p % ring`` of
    ``state`` → f32 ``[G,D]``, ``Σ softmax(scores) ⊙ values`` over a group's members, per channel.

    The gated pooling of DeepSeek-V4.1's KV compressor.
    """
    count, dim = checks.tensor("values", values, (None, None), torch.float32)
    checks.tensor("scores", scores, (count, dim), torch.float32)
    checks.tensor("state", state, (None, None, 2, dim), torch.float32)
    _, ratio = checks.tensor("members", members, (None, None), torch.int64)
    checks.positive("columns of members (the ratio)", ratio)


def store_compress_state(values: Tensor, scores: Tensor, state: Tensor, places: Tensor) -> None:
    """Write rows into ``state`` in place (see :func:`compress_pool`), row ``i`` at flat place ``places[i]``
    (``[N]`` int64; −1 skips the row)."""
    count, dim = checks.tensor("values", values, (None, None), torch.float32)
    checks.tensor("scores", scores, (count, dim), torch.float32)
    checks.tensor("state", state, (None, None, 2, dim), torch.float32)
    checks.tensor("places", places, (count,), torch.int64)


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
) -> None:
    """Choose the compressed entries each row attends to.

    ``q [N,H,D]`` bf16 (quantised), ``weights [N,H]`` bf16, ``key_cache [P,E,B]`` uint8 records (``fp4_e8m0_32``),
    ``block_tables [S,pages]`` int32, ``seq_of_row``, ``visible`` ``[N]`` int32 (entries below ``visible`` compete)
    → ``indices [N,topk]`` int32, ascending, −1 padded; ``blocks [N,keep_blocks]`` likewise, or None.

    ``score = Σ_h weight_h·relu(q_h·k)``, the lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556, eq. 1), with bf16
    products and sum; ties go to the lowest index. With
    ``candidate_blocks [N,C]`` int32 only entries of those blocks (``block_size`` entries each) compete.
    ``keep_blocks > 0`` also selects that many blocks by their best score, the newest entry's block always.
    """
    rows, heads, dim = checks.tensor("q", q, (None, None, None), torch.bfloat16)
    checks.tensor("weights", weights, (rows, heads), torch.bfloat16)
    checks.tensor("key_cache", key_cache, (None, None, checks.codec(INDEX_CODEC, dim)), torch.uint8)
    checks.tensor("block_tables", block_tables, (None, None), torch.int32)
    _chunk_rows(rows, seq_of_row=seq_of_row, visible=visible)
    checks.positive("topk", topk)
    if candidate_blocks is not None:
        checks.tensor("candidate_blocks", candidate_blocks, (rows, None), torch.int32)
    if candidate_blocks is not None or keep_blocks:
        checks.positive("block_size", block_size)


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
) -> None:
    """``q [N,H,D]`` bf16, ``sink [H]`` f32 → bf16 ``[N,H,D]``; one shared key (= value) per entry.

    A row at position ``p`` sees its window ``max(0, p-W+1)…p`` (``chunk_records [N,B]`` for positions from its
    ``starts`` on, else ``window_cache [slots, ring, B]`` at ``position % ring``; ``fp8_e8m0_32``), then the entries
    ``indices [N,K]`` (−1 = none) of ``compressed_cache [P,E,B']`` (``fp4_e4m3_16``) through ``block_tables``.

    Softmax over ``scale·q·k`` with ``exp(sink)`` added to the denominator only. Probabilities round to bf16
    before the value product, relative to the running maximum over chunks of 64 keys, the window part always
    filling ``window_size`` places; the denominator stays f32. No visible key gives 0.
    """
    rows, heads, dim = checks.tensor("q", q, (None, None, None), torch.bfloat16)
    checks.tensor("sink", sink, (heads,), torch.float32)
    record = checks.codec(WINDOW_CODEC, dim)
    _, ring, _ = checks.tensor("window_cache", window_cache, (None, None, record), torch.uint8)
    checks.tensor("chunk_records", chunk_records, (rows, record), torch.uint8)
    _chunk_rows(rows, slots=slots, starts=starts, positions=positions)
    if ring < window_size - 1:
        raise ValueError(f"window_cache must have a ring of at least {window_size - 1}, got {ring}")
    extras = (compressed_cache, block_tables, seq_of_row, indices)
    if all(part is None for part in extras):
        return
    if compressed_cache is None or block_tables is None or seq_of_row is None or indices is None:
        raise ValueError("compressed_cache, block_tables, seq_of_row and indices come together or not at all")
    record = checks.codec(COMPRESSED_CODEC, dim)
    checks.tensor("compressed_cache", compressed_cache, (None, None, record), torch.uint8)
    checks.tensor("block_tables", block_tables, (None, None), torch.int32)
    _chunk_rows(rows, seq_of_row=seq_of_row)
    checks.tensor("indices", indices, (rows, None), torch.int32)


def draft_attention(
    q: Tensor,
    sink: Tensor,
    scale: float,
    window_cache: Tensor,
    block_records: Tensor,
    slots: Tensor,
    starts: Tensor,
    window_size: int,
) -> None:
    """Attention of S draft blocks of B rows each, one after the other: ``q [S*B,H,D]`` bf16 → bf16 ``[S*B,H,D]``.

    Every row of block ``s`` sees the same keys: positions ``max(0, starts[s]-W)…starts[s]-1`` of
    ``window_cache [slots, ring, record]`` (at ``position % ring`` of ``slots[s]``), then all B rows of the block
    itself, whatever their order, from ``block_records [S*B, record]`` (both ``fp8_e8m0_32``). ``slots``, ``starts``
    ``[S]`` int32: the state slot, and the position of the block's first row.

    The softmax is :func:`sparse_attention`'s; the block's keys take the places after the window's ``window_size``.
    """
    rows, heads, dim = checks.tensor("q", q, (None, None, None), torch.bfloat16)
    checks.tensor("sink", sink, (heads,), torch.float32)
    record = checks.codec(WINDOW_CODEC, dim)
    _, ring, _ = checks.tensor("window_cache", window_cache, (None, None, record), torch.uint8)
    checks.tensor("block_records", block_records, (rows, record), torch.uint8)
    (blocks,) = checks.tensor("slots", slots, (None,), torch.int32)
    checks.tensor("starts", starts, (blocks,), torch.int32)
    if ring < window_size:
        raise ValueError(f"window_cache must have a ring of at least {window_size}, got {ring}")
    checks.multiple("rows of q", rows, max(blocks, 1))
    if rows and not blocks:
        raise ValueError(f"slots must name at least one block for {rows} rows of q, got none")


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    scale: float,
    block_tables: Tensor,
    seq_of_row: Tensor,
    positions: Tensor,
    window_size: int | None,
) -> None:
    """Causal grouped-query attention over pages: ``q [N,H,D]`` bf16 → bf16 ``[N,H,D]``.

    ``key_cache``, ``value_cache`` ``[P,G,E,D]`` bf16, ``H`` a multiple of ``G``: query head ``h`` reads KV head
    ``h // (H/G)``. Position ``t`` of sequence ``s`` is entry ``t % E`` of page ``block_tables[s, t // E]``
    (``block_tables [S,pages]`` int32). A row at ``positions[n]`` of sequence ``seq_of_row[n]`` (``[N]`` int32) sees
    ``max(0, p-W+1)…p``, everything before it without a ``window_size``; its own key and value are stored already.

    Softmax over ``scale·q·k``. Probabilities round to bf16 before the value product, relative to the running
    maximum over chunks of 64 positions (0-63, 64-127, …); the denominator stays f32.
    """
    rows, heads, dim = checks.tensor("q", q, (None, None, None), torch.bfloat16)
    pages = checks.tensor("key_cache", key_cache, (None, None, None, dim), torch.bfloat16)
    checks.tensor("value_cache", value_cache, pages, torch.bfloat16)
    checks.positive("KV heads of key_cache", pages[1])
    checks.multiple("heads of q", heads, pages[1])
    checks.tensor("block_tables", block_tables, (None, None), torch.int32)
    _chunk_rows(rows, seq_of_row=seq_of_row, positions=positions)
    if window_size is not None:
        checks.positive("window_size", window_size)
