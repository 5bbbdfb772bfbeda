"""Compressor, two-level indexer, and attention over window rings, pages and draft blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.codecs import COMPRESSED_CODEC, INDEX_CODEC, WINDOW_CODEC
from deepinfer_kernels.reference.codec import unpack_kv

#: Attention probabilities are rounded relative to the running maximum over chunks of this many keys.
PROBABILITY_CHUNK = 64


def compress_pool(
    values: Tensor,
    scores: Tensor,
    state: Tensor,
    slots: Tensor,
    starts: Tensor,
    positions: Tensor,
    rows: Tensor,
    ratio: int,
) -> Tensor:
    """See the interface."""
    ring = state.shape[1]
    out = torch.empty(len(rows), values.shape[1], dtype=torch.float32)
    for g, row in enumerate(rows.tolist()):
        members = []
        for q in range(int(positions[row]) - ratio + 1, int(positions[row]) + 1):
            if q >= int(starts[row]):
                source = row - (int(positions[row]) - q)
                members.append((values[source], scores[source]))
            else:
                members.append(tuple(state[int(slots[row]), q % ring]))
        value, score = (torch.stack(part) for part in zip(*members, strict=True))
        out[g] = (value * score.softmax(0)).sum(0)
    return out


def store_compress_state(
    values: Tensor, scores: Tensor, state: Tensor, slots: Tensor, positions: Tensor, ends: Tensor
) -> None:
    """See the interface."""
    ring = state.shape[1]
    live = (positions > ends - ring).nonzero()[:, 0]
    place = slots[live].long(), (positions[live] % ring).long()
    state[place] = torch.stack([values[live], scores[live]], 1)


def _entries(cache: Tensor, block_table: Tensor, indices: Tensor) -> Tensor:
    """Records of a sequence's entries ``indices``."""
    per_page = cache.shape[1]
    indices = indices.long()
    return cache[block_table[indices // per_page].long(), indices % per_page]


def _top_ascending(scores: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest scores (ties: lowest position), ascending."""
    order = scores.argsort(descending=True, stable=True)[:count]
    return order.sort().values


def _padded(values: Tensor, width: int) -> Tensor:
    out = torch.full((width,), -1, dtype=torch.int32)
    out[: len(values)] = values.to(torch.int32)
    return out


def index_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Scores of one row: ``q [H,D]``, ``weights [H]``, ``keys [L,D]`` bf16 → bf16 ``[L]``.

    The dot product, its weighted value and the sum over heads each round to bf16.
    """
    dots = (q.double() @ keys.double().T).to(torch.bfloat16)
    weighted = dots.relu() * weights[:, None]
    return weighted.double().sum(0).to(torch.bfloat16)


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
    dim = q.shape[-1]
    picked, kept = [], []
    for row in range(len(q)):
        length = int(visible[row])
        pool = torch.arange(length)
        if candidate_blocks is not None:
            blocks = candidate_blocks[row][candidate_blocks[row] >= 0]
            pool = (blocks[:, None].long() * block_size + torch.arange(block_size)).flatten()
            pool = pool[pool < length]
        records = _entries(key_cache, block_tables[int(seq_of_row[row])], pool)
        scores = index_scores(q[row], weights[row], unpack_kv(records, INDEX_CODEC, dim)).float()
        picked.append(_padded(pool[_top_ascending(scores, topk)], topk))
        if keep_blocks:
            kept.append(_padded(_candidate_blocks(scores, block_size, keep_blocks), keep_blocks))
    indices = torch.stack(picked) if picked else torch.empty(0, topk, dtype=torch.int32)
    if not keep_blocks:
        return indices, None
    return indices, torch.stack(kept) if kept else torch.empty(0, keep_blocks, dtype=torch.int32)


def _candidate_blocks(scores: Tensor, block_size: int, keep_blocks: int) -> Tensor:
    """Blocks with the largest best score; the one that holds the newest entry is always kept."""
    if scores.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    padding = -scores.numel() % block_size
    best = torch.nn.functional.pad(scores, (0, padding), value=-torch.inf)
    best = best.unflatten(0, (-1, block_size)).amax(-1)
    best[-1] = torch.inf
    return _top_ascending(best, keep_blocks)


def attend(q: Tensor, keys: Tensor, values: Tensor, valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    """One row: ``q [H,D]`` over ``keys``, ``values`` ``[L,D]``, of which ``valid [L]`` count → bf16 ``[H,D]``."""
    heads, dim = q.shape
    total = torch.zeros(heads, dim, dtype=torch.float64)
    denominator = torch.zeros(heads)
    peak = torch.full((heads,), -torch.inf)
    scores = ((q.double() @ keys.double().T).float() * scale).masked_fill(~valid, -torch.inf)
    for begin in range(0, len(keys), PROBABILITY_CHUNK):
        part = scores[:, begin : begin + PROBABILITY_CHUNK]
        new_peak = torch.maximum(peak, part.amax(-1))
        base = torch.where(new_peak.isinf(), torch.zeros_like(new_peak), new_peak)
        shrink = torch.exp(peak - base)
        prob = torch.exp(part - base[:, None])
        denominator = denominator * shrink + prob.sum(-1)
        weighted = prob.to(torch.bfloat16).double() @ values[begin : begin + PROBABILITY_CHUNK].double()
        total = total * shrink.double()[:, None] + weighted
        peak = new_peak
    base = torch.where(peak.isinf(), torch.zeros_like(peak), peak)
    denominator = denominator + torch.exp(sink - base)
    out = total.float() / denominator[:, None]
    return torch.where(valid.any(), out, torch.zeros_like(out)).to(torch.bfloat16)


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
    dim, ring = q.shape[-1], window_cache.shape[1]
    out = torch.empty_like(q)
    for row in range(len(q)):
        position, start = int(positions[row]), int(starts[row])
        window = range(max(0, position - window_size + 1), position + 1)
        records = [
            chunk_records[row - (position - p)] if p >= start else window_cache[int(slots[row]), p % ring]
            for p in window
        ]
        keys = torch.zeros(window_size, dim, dtype=torch.bfloat16)
        keys[: len(records)] = unpack_kv(torch.stack(records), WINDOW_CODEC, dim)
        valid = torch.arange(window_size) < len(records)
        if compressed_cache is not None:
            assert block_tables is not None and seq_of_row is not None and indices is not None, (
                "a compressed cache comes with its block tables, row owners and indices"
            )
            chosen = indices[row][indices[row] >= 0]
            more = _entries(compressed_cache, block_tables[int(seq_of_row[row])], chosen)
            keys = torch.cat([keys, unpack_kv(more, COMPRESSED_CODEC, dim)])
            valid = torch.cat([valid, torch.ones(len(chosen), dtype=torch.bool)])
        out[row] = attend(q[row], keys, keys, valid, sink, scale)
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
    dim, ring = q.shape[-1], window_cache.shape[1]
    size = len(q) // max(len(slots), 1)
    out = torch.empty_like(q)
    for block, (slot, start) in enumerate(zip(slots.tolist(), starts.tolist(), strict=True)):
        rows = slice(block * size, (block + 1) * size)
        window = torch.arange(max(0, start - window_size), start)
        keys = torch.zeros(window_size + size, dim, dtype=torch.bfloat16)
        keys[: len(window)] = unpack_kv(window_cache[slot, window % ring], WINDOW_CODEC, dim)
        keys[window_size:] = unpack_kv(block_records[rows], WINDOW_CODEC, dim)
        place = torch.arange(window_size + size)
        valid = (place < len(window)) | (place >= window_size)
        for row in range(rows.start, rows.stop):
            out[row] = attend(q[row], keys, keys, valid, sink, scale)
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
    kv_heads, entries = key_cache.shape[1:3]
    group = q.shape[1] // kv_heads
    no_sink = torch.full((group,), -torch.inf)
    out = torch.empty_like(q)
    for row in range(len(q)):
        position = int(positions[row])
        first = 0 if window_size is None else max(0, position - window_size + 1)
        seen = torch.arange(first, position + 1)
        pages, within = block_tables[int(seq_of_row[row]), seen // entries].long(), seen % entries
        # Empty places in front put chunks where they belong.
        lead = first % PROBABILITY_CHUNK
        valid = torch.arange(lead + len(seen)) >= lead
        for head in range(kv_heads):
            heads = slice(head * group, (head + 1) * group)
            keys, values = (
                torch.nn.functional.pad(cache[pages, head, within], (0, 0, lead, 0))
                for cache in (key_cache, value_cache)
            )
            out[row, heads] = attend(q[row, heads], keys, values, valid, no_sink, scale)
    return out
