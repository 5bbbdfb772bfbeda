"""Compressor, two-level indexer, and attention over window rings, pages and draft blocks.

All rows at once, with fixed shapes: nothing is read back from the device to decide what is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.codecs import COMPRESSED_CODEC, INDEX_CODEC, WINDOW_CODEC
from deepinfer_kernels.reference.codec import scatter_rows, unpack_kv

#: Attention probabilities are rounded relative to the running maximum over chunks of this many keys.
PROBABILITY_CHUNK = 64


def compress_pool(values: Tensor, scores: Tensor, state: Tensor, members: Tensor) -> Tensor:
    """See the interface."""
    held = state.flatten(0, 1)[(-1 - members).clamp_min(0)]
    here, rows = (members >= 0)[..., None], members.clamp_min(0)
    value, score = (torch.where(here, source[rows], held[:, :, part]) for part, source in enumerate((values, scores)))
    return (value * score.softmax(1)).sum(1)


def store_compress_state(values: Tensor, scores: Tensor, state: Tensor, places: Tensor) -> None:
    """See the interface."""
    scatter_rows(state.flatten(0, 1).flatten(1), places, torch.cat([values, scores], 1))


def _entries(cache: Tensor, tables: Tensor, indices: Tensor) -> Tensor:
    """Records of entries ``indices [N,K]`` of sequences with block tables ``tables [N,pages]`` → ``[N,K,B]``."""
    per_page, indices = cache.shape[1], indices.long()
    return cache[tables.gather(1, indices // per_page).long(), indices % per_page]


def _unpacked(records: Tensor, codec: str, dim: int) -> Tensor:
    """``records [A,B,record]`` → bf16 ``[A,B,dim]``."""
    return unpack_kv(records.flatten(0, 1), codec, dim).view(*records.shape[:2], dim)


def _best(scores: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Of each row the ``count`` eligible places with the largest scores (ties: lowest), ascending, −1 padded.

    ``scores [N,L]`` f32, ``eligible [N,L]`` bool → ``[N, count]`` int32.
    """
    rows, length = scores.shape
    order = scores.masked_fill(~eligible, -torch.inf).argsort(dim=-1, descending=True, stable=True)[:, :count]
    chosen = torch.where(eligible.gather(1, order), order, length).sort(-1).values
    out = torch.full((rows, count), -1, dtype=torch.int32, device=scores.device)
    out[:, : chosen.shape[1]] = torch.where(chosen < length, chosen, -1)
    return out


def index_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """``q [N,H,D]``, ``weights [N,H]``, ``keys [N,L,D]`` bf16 → bf16 ``[N,L]``.

    The dot product, its weighted value and the sum over heads each round to bf16.
    """
    dots = (q.double() @ keys.double().mT).to(torch.bfloat16)
    weighted = dots.relu() * weights[..., None]
    return weighted.double().sum(1).to(torch.bfloat16)


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
    sequences, pages = block_tables.shape
    records = key_cache[block_tables.long()].view(sequences, pages * key_cache.shape[1], key_cache.shape[2])
    keys = _unpacked(records, INDEX_CODEC, q.shape[-1])[seq_of_row.long()]
    scores = index_scores(q, weights, keys).float()
    place = torch.arange(scores.shape[1], device=q.device)
    eligible = place < visible[:, None]
    if candidate_blocks is not None:
        eligible = eligible & _in_blocks(place // block_size, candidate_blocks)
    indices = _best(scores, eligible, topk)
    if not keep_blocks:
        return indices, None
    return indices, _candidate_blocks(scores.masked_fill(~eligible, -torch.inf), visible, block_size, keep_blocks)


def _in_blocks(block_of_place: Tensor, blocks: Tensor) -> Tensor:
    """Whether each place's block ``[L]`` is among a row's ``blocks [N,C]`` (−1: none) → ``[N,L]`` bool."""
    count = len(block_of_place)
    member = torch.zeros(len(blocks), count + 1, dtype=torch.bool, device=blocks.device)
    member.scatter_(1, torch.where(blocks < 0, count, blocks).long().clamp_max(count), True)
    return member[:, block_of_place]


def _candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, keep_blocks: int) -> Tensor:
    """Blocks with the largest best score; the one that holds the newest entry is always kept.

    ``scores [N,L]`` f32, −inf where not visible.
    """
    rows, length = scores.shape
    count = -(-length // block_size)
    padded = torch.nn.functional.pad(scores, (0, count * block_size - length), value=-torch.inf)
    best = padded.view(rows, count, block_size).amax(-1)
    block, newest = torch.arange(count, device=scores.device), (visible - 1)[:, None] // block_size
    return _best(best.masked_fill(block == newest, torch.inf), block <= newest, keep_blocks)


def attend(q: Tensor, keys: Tensor, values: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """``q [...,H,D]`` over ``keys``, ``values`` ``[...,L,D]``, of which ``valid [...,L]`` count, ``sink [H]`` f32 →
    bf16 ``[...,H,D]``. Leading dimensions broadcast."""
    total = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    denominator = torch.zeros(q.shape[:-1], device=q.device)
    peak = torch.full_like(denominator, -torch.inf)
    for begin in range(0, keys.shape[-2], PROBABILITY_CHUNK):
        chunk = slice(begin, begin + PROBABILITY_CHUNK)
        ignored = ~valid[..., chunk]
        # What does not count may be anything, NaN too.
        key, value = (part[..., chunk, :].double().masked_fill(ignored[..., None], 0) for part in (keys, values))
        scores = ((q.double() @ key.mT).float() * scale).masked_fill(ignored[..., None, :], -torch.inf)
        new_peak = torch.maximum(peak, scores.amax(-1))
        base = torch.where(new_peak.isinf(), 0, new_peak)
        shrink = torch.exp(peak - base)
        prob = torch.exp(scores - base[..., None])
        denominator = denominator * shrink + prob.sum(-1)
        total = total * shrink.double()[..., None] + prob.to(torch.bfloat16).double() @ value
        peak = new_peak
    base = torch.where(peak.isinf(), 0, peak)
    denominator = denominator + torch.exp(sink - base)
    out = total.float() / denominator[..., None]
    return torch.where(valid.any(-1)[..., None, None], out, 0).to(torch.bfloat16)


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
    rows, _, dim = q.shape
    column = torch.arange(window_size, device=q.device)
    position, row = positions[:, None].long(), torch.arange(rows, device=q.device)[:, None]
    at = (position - window_size + 1).clamp_min(0) + column
    held = window_cache[slots[:, None].long(), at % window_cache.shape[1]]
    here = chunk_records[(row - position + at).clamp(0, max(rows - 1, 0))]
    records = torch.where((at >= starts[:, None])[..., None], here, held)
    keys, valid = _unpacked(records, WINDOW_CODEC, dim), at <= position
    if compressed_cache is not None:
        assert block_tables is not None and seq_of_row is not None and indices is not None, (
            "a compressed cache comes with its block tables, row owners and indices"
        )
        # Chunks are filled up, whatever the places of the indices: those that are none go behind the others.
        chosen = indices.gather(1, (indices < 0).int().argsort(dim=-1, stable=True))
        more = _entries(compressed_cache, block_tables[seq_of_row.long()], chosen.clamp_min(0))
        keys = torch.cat([keys, _unpacked(more, COMPRESSED_CODEC, dim)], 1)
        valid = torch.cat([valid, chosen >= 0], 1)
    return attend(q, keys, keys, valid, sink, scale)


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
    rows, heads, dim = q.shape
    blocks, start = len(slots), starts[:, None].long()
    size = rows // max(blocks, 1)
    window = (start - window_size).clamp_min(0) + torch.arange(window_size, device=q.device)
    held = window_cache[slots[:, None].long(), window % window_cache.shape[1]]
    records = torch.cat([held, block_records.view(blocks, size, block_records.shape[1])], 1)
    valid = torch.nn.functional.pad(window < start, (0, size), value=True)
    keys = _unpacked(records, WINDOW_CODEC, dim)[:, None]
    out = attend(q.view(blocks, size, heads, dim), keys, keys, valid[:, None], sink, scale)
    return out.view(rows, heads, dim)


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
    rows, heads, dim = q.shape
    kv_heads, entries = key_cache.shape[1:3]
    group, length = heads // kv_heads, block_tables.shape[1] * entries
    pages = block_tables[seq_of_row.long()].long()
    keys, values = (
        cache[pages].transpose(1, 2).reshape(rows, kv_heads, length, dim) for cache in (key_cache, value_cache)
    )
    place, position = torch.arange(length, device=q.device), positions[:, None]
    valid = place <= position
    if window_size is not None:
        valid = valid & (place > position - window_size)
    no_sink = torch.full((group,), -torch.inf, device=q.device)
    out = attend(q.view(rows, kv_heads, group, dim), keys, values, valid[:, None], no_sink, scale)
    return out.view(rows, heads, dim)
