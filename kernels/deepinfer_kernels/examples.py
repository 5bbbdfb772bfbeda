"""Calls of every op with small random arguments, for comparing one family's results with another's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer_kernels.codecs import CODECS, COMPRESSED_CODEC, INDEX_CODEC, WINDOW_CODEC
from deepinfer_kernels.weights import DenseWeight, Fp4Weight, Fp8Weight, Weight

#: Rows of each call.
ROWS = 9
_BF16, _F32 = 2.0**-7, 1e-5


@dataclass(frozen=True)
class Example:
    """One call: ``family.op(*args)``.

    by_row: the arguments, by index, that have an entry per row of the result; for those the rows are independent.
    writes: the argument that the op writes to, or None.
    tolerance: largest difference between families, relative to the largest value of a row; 0 for the same bits.
    """

    op: str
    args: tuple[Any, ...]
    by_row: tuple[int, ...] = ()
    writes: int | None = None
    tolerance: float = 0.0


class _Random:
    """Random tensors from one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def f32(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator)

    def bf16(self, *shape: int) -> Tensor:
        return self.f32(*shape).to(torch.bfloat16)

    def below(self, high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.randint(low, high, shape, dtype=dtype, generator=self._generator)

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator)

    def records(self, codec: str, dim: int, *lead: int) -> Tensor:
        """Stored vectors: any codes that are numbers, with scales near one."""
        data = CODECS[codec].data_bytes(dim)
        codes = self.below(120, *lead, data, dtype=torch.uint8)  # e4m3 codes above 126 are no numbers
        one = 56 if CODECS[codec].e4m3_scale else 127
        scales = self.below(one + 3, *lead, dim // CODECS[codec].group, low=one - 3, dtype=torch.uint8)
        return torch.cat([codes, scales], -1)

    def weight(self, form: str, outputs: int, inputs: int, *lead: int) -> Weight:
        """A weight of some storage format with values of order 1."""
        if form == "bf16":
            return DenseWeight(self.bf16(*lead, outputs, inputs))
        blocks = inputs // 32
        if form == "fp8":
            codes = self.f32(*lead, outputs, inputs).to(torch.float8_e4m3fn).view(torch.uint8)
            return Fp8Weight(codes, self.below(129, *lead, -(-outputs // 32), blocks, low=124, dtype=torch.uint8))
        codes = self.below(256, *lead, outputs, inputs // 2, dtype=torch.uint8)
        return Fp4Weight(codes, self.below(127, *lead, outputs, blocks, low=122, dtype=torch.uint8))


def examples(seed: int = 0) -> list[Example]:
    """At least one call of every op. All tensors are on the host."""
    random = _Random(seed)
    return [*_dense(random), *_streams(random), *_moe(random), *_codecs(random), *_attention(random)]


def _dense(random: _Random) -> Iterator[Example]:
    x = random.bf16(ROWS, 64)
    for form in ("bf16", "fp8", "fp4"):
        yield Example("linear", (x, random.weight(form, 40, 64), torch.bfloat16), (0,), tolerance=_BF16)
    yield Example("linear", (random.f32(ROWS, 64), random.weight("bf16", 40, 64), torch.float32), (0,), tolerance=_F32)
    yield Example("linear_quantized", (x, random.weight("fp8", 40, 64)), (0,), tolerance=_BF16)
    grouped = random.bf16(ROWS, 3, 32)
    yield Example("grouped_linear", (grouped, random.weight("fp8", 3 * 20, 32), 3), (0,), tolerance=_BF16)
    yield Example("rms_norm", (x, random.bf16(64), 1e-6), (0,), tolerance=_BF16)
    positions, frequencies = random.below(100_000, ROWS, dtype=torch.int64), 1e4 ** -torch.linspace(0, 1, 8)
    yield Example("rope_table", (positions, frequencies), (0,), tolerance=_F32)
    angles = positions[:, None].float() * frequencies
    heads = random.bf16(ROWS, 3, 24)
    for inverse in (False, True):
        yield Example("apply_rope", (heads, angles.cos(), angles.sin(), inverse), (0, 1, 2), tolerance=_BF16)
    yield Example("apply_rope_half_split", (heads, angles.cos(), angles.sin()), (0, 1, 2), tolerance=_BF16)


def _streams(random: _Random) -> Iterator[Example]:
    x = random.bf16(ROWS, 4, 32)
    mix = random.f32(24, 128), random.f32(24), random.f32(3).abs()
    yield Example("hyper_connection_mix", (x, *mix, 20, 1e-6, 1e-20), (0,), tolerance=1e-4)
    weights = torch.sigmoid(random.f32(ROWS, 4))
    yield Example("hyper_connection_collapse", (x, weights), (0, 1), tolerance=_BF16)
    comb = random.f32(ROWS, 4, 4).softmax(-1)
    yield Example("hyper_connection_expand", (random.bf16(ROWS, 32), x, weights, comb), (0, 1, 2, 3), tolerance=_BF16)
    gate = random.bf16(ROWS, 5 * 32), random.bf16(4, 32), random.bf16(4, 32)
    mask = random.below(2, ROWS).bool()
    yield Example("engram_gate", (x, *gate, 1e-20, 1e-6, mask), (0, 1, 6), tolerance=_BF16)


def _moe(random: _Random) -> Iterator[Example]:
    experts, dim, inner, chosen = 6, 64, 32, 3
    x = random.bf16(ROWS, dim) / 8
    router = random.bf16(experts, dim), random.f32(experts)
    yield Example("route_experts", (x, *router, chosen, 1.5, True), (0,), tolerance=_F32)
    yield Example("swiglu", (random.bf16(ROWS, inner) * 3, random.bf16(ROWS, inner), 1.5), (0, 1), tolerance=_BF16)
    ids = torch.stack([random.order(experts)[:chosen] for _ in range(ROWS)]).int()
    weights = torch.sigmoid(random.f32(ROWS, chosen))
    for form, quantize in (("bf16", False), ("fp4", True)):
        w1, w3 = (random.weight(form, inner, dim, experts) for _ in range(2))
        w2 = random.weight(form, dim, inner, experts)
        yield Example("moe_experts", (x, ids, weights, w1, w2, w3, 1.5, quantize), (0, 1, 2), tolerance=_BF16)


def _codecs(random: _Random) -> Iterator[Example]:
    x = random.bf16(ROWS, 64) * 8
    for codec in CODECS:
        yield Example("quantize_dequantize", (x, codec), (0,))
        yield Example("pack_kv", (x, codec), (0,))
        yield Example("unpack_kv", (random.records(codec, 64, ROWS), codec, 64), (0,))
    records = random.records(WINDOW_CODEC, 64, ROWS)
    places = random.order(4 * 8)[:ROWS]
    places[2] = -1
    yield Example("store_records", (torch.zeros(4, 8, records.shape[1], dtype=torch.uint8), places, records), writes=0)


def _attention(random: _Random) -> Iterator[Example]:
    heads, dim, window, ring, pages, entries = 4, 64, 8, 12, 12, 16
    q, sink = random.bf16(ROWS, heads, dim), random.f32(heads)
    slots, positions = random.order(ROWS + 1)[:ROWS].int(), random.below(3 * entries, ROWS)
    tables = random.order(pages)[: 3 * 3].view(3, 3).int()
    sequences = random.below(3, ROWS)
    window_cache = random.records(WINDOW_CODEC, dim, ROWS + 1, ring)
    chunk = random.records(WINDOW_CODEC, dim, ROWS)
    decode = (q, sink, dim**-0.5, window_cache, chunk, slots, positions, positions, window)
    yield Example("sparse_attention", (*decode, None, None, None, None), (0, 4, 5, 6, 7), tolerance=_BF16)
    compressed = random.records(COMPRESSED_CODEC, dim, pages, entries)
    indices = torch.stack([random.order(3 * entries)[:6].sort().values for _ in range(ROWS)]).int()
    indices[1, 3:] = indices[4] = -1
    found = (compressed, tables, sequences, indices)
    yield Example("sparse_attention", (*decode, *found), (0, 4, 5, 6, 7, 11, 12), tolerance=_BF16)

    keys, visible = random.records(INDEX_CODEC, 32, pages, entries), random.below(3 * entries + 1, ROWS)
    scores = (random.bf16(ROWS, heads, 32), random.bf16(ROWS, heads), keys, tables, sequences, visible, 5)
    yield Example("index_topk", (*scores, None, 4, 3), (0, 1, 4, 5))
    blocks = torch.stack([random.order(3 * entries // 4)[:3].sort().values for _ in range(ROWS)]).int()
    yield Example("index_topk", (*scores, blocks, 4, 0), (0, 1, 4, 5, 7))

    drafts = (q[:6].contiguous(), sink, dim**-0.5, window_cache, chunk[:6].contiguous(), slots[:2].contiguous())
    yield Example("draft_attention", (*drafts, positions[:2].contiguous(), window), tolerance=_BF16)

    cache = [random.bf16(pages, 2, entries, dim) for _ in range(2)]
    for size in (None, 7):
        paged = (q, *cache, dim**-0.5, tables, sequences, positions, size)
        yield Example("paged_attention", paged, (0, 5, 6), tolerance=_BF16)

    values, gates, state = random.f32(ROWS, 32), random.f32(ROWS, 32), random.f32(ROWS + 1, 4, 2, 32)
    # Rows of this step, and places of the state, which are below zero.
    members = random.below(ROWS, 5, 4, low=-4 * (ROWS + 1), dtype=torch.int64)
    yield Example("compress_pool", (values, gates, state, members), (3,), tolerance=_F32)
    kept = random.order(4 * (ROWS + 1))[:ROWS]
    kept[4] = -1
    yield Example("store_compress_state", (values, gates, state, kept), writes=2)
