"""Ops that read a sequence's state (rings and pages): chunking, batching, threads and instruction set change
no bit, and both families agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from deepinfer_kernels import cpu, ops

DIM, INDEX_DIM, HEADS, INDEX_HEADS = 32, 32, 3, 5
RATIO, WINDOW, RING, PAGE = 2, 11, 13, 4
TOPK, BLOCK, KEEP = 9, 3, 4


def quantised(q: Tensor) -> Tensor:
    """Index queries as the indexer gets them: their products with keys are exact in f32."""
    flat: Tensor = ops.reference.quantize_dequantize(q.flatten(0, 1), "fp4_e8m0_32")
    return flat.reshape(q.shape)


@dataclass
class Sequence:
    """Everything the layer gets for each position of one sequence."""

    length: int
    q: Tensor = field(init=False)
    kv: Tensor = field(init=False)
    values: Tensor = field(init=False)
    scores: Tensor = field(init=False)
    index_q: Tensor = field(init=False)
    index_weights: Tensor = field(init=False)
    index_keys: Tensor = field(init=False)

    def __post_init__(self) -> None:
        n = self.length
        self.q = torch.randn(n, HEADS, DIM).bfloat16()
        self.kv = torch.randn(n, DIM).bfloat16()
        self.values, self.scores = torch.randn(n, DIM), torch.randn(n, DIM)
        self.index_q = quantised(torch.randn(n, INDEX_HEADS, INDEX_DIM).bfloat16())
        self.index_weights = torch.randn(n, INDEX_HEADS).bfloat16()
        self.index_keys = torch.randn(n, INDEX_DIM).bfloat16()


class Layer:
    """A ratio-2 attention layer's cache traffic, as the model drives it; keeps what each position computed."""

    def __init__(self, family: str, sequences: list[Sequence]) -> None:
        self.ops: Any = ops.family(family)
        self.sequences = sequences
        pages = 1 + max(-(-s.length // (RATIO * PAGE)) for s in sequences)
        total = pages * len(sequences) + 1
        # Pages are handed out scattered; page 0 is nobody's.
        shuffled = torch.randperm(total - 1, generator=torch.Generator().manual_seed(7)) + 1
        self.block_tables = shuffled.reshape(len(sequences), pages).int()
        self.ring = torch.zeros(len(sequences) + 1, RING, DIM + 1, dtype=torch.uint8)
        self.state = torch.zeros(len(sequences) + 1, RATIO + 1, 2, DIM)
        self.compressed = torch.zeros(total, PAGE, DIM // 2 + 2, dtype=torch.uint8)
        self.keys = torch.zeros(total, PAGE, INDEX_DIM // 2 + 1, dtype=torch.uint8)
        self.sink = torch.linspace(-1, 1, HEADS)
        self.done = [0] * len(sequences)
        self.results: dict[tuple[int, int], list[Tensor]] = {}

    def step(self, chunks: list[tuple[int, int]]) -> None:
        """Advance each ``(sequence, tokens)``."""
        owner: list[int] = []
        position: list[int] = []
        start: list[int] = []
        end: list[int] = []
        for s, count in chunks:
            first, self.done[s] = self.done[s], self.done[s] + count
            owner += [s] * count
            position += range(first, first + count)
            start += [first] * count
            end += [first + count - 1] * count
        rows = list(zip(owner, position, strict=True))
        self._run(rows, *(torch.tensor(x, dtype=torch.int32) for x in (owner, position, start, end)))

    def _gather(self, name: str, rows: list[tuple[int, int]]) -> Tensor:
        return torch.stack([getattr(self.sequences[s], name)[p] for s, p in rows])

    def _run(self, rows: list[tuple[int, int]], owner: Tensor, position: Tensor, start: Tensor, end: Tensor) -> None:
        slots = owner + 1
        latents = self._compress(rows, slots, position, start, end)
        visible = (position + 1) // RATIO
        lookup = self.keys, self.block_tables, owner, visible, TOPK
        queries = self._gather("index_q", rows), self._gather("index_weights", rows)
        indices, blocks = self.ops.index_topk(*queries, *lookup, None, BLOCK, KEEP)
        restricted, none = self.ops.index_topk(*queries, *lookup, blocks, BLOCK, 0)
        assert none is None, "no blocks were asked for"
        records = self.ops.pack_kv(self._gather("kv", rows), "fp8_e8m0_32")
        window = self.ring, records, slots, start, position, WINDOW
        q = self._gather("q", rows)
        out = self.ops.sparse_attention(
            q, self.sink, 0.2, *window, self.compressed, self.block_tables, owner, restricted
        )
        window_only = self.ops.sparse_attention(q, self.sink, 0.2, *window, None, None, None, None)
        kept = torch.where(position > end - RING, slots * RING + position % RING, -1)
        self.ops.store_records(self.ring, kept.long(), records)
        for i, row in enumerate(rows):
            self.results[row] = [indices[i], blocks[i], restricted[i], out[i], window_only[i]]
            if i in latents:
                self.results[row].append(latents[i])

    def _compress(
        self, rows: list[tuple[int, int]], slots: Tensor, position: Tensor, start: Tensor, end: Tensor
    ) -> dict[int, Tensor]:
        values, scores = self._gather("values", rows), self._gather("scores", rows)
        enders = ((position + 1) % RATIO == 0).nonzero()[:, 0]
        ring = self.state.shape[1]
        back = torch.arange(RATIO - 1, -1, -1)
        at = position[enders, None] - back
        held = -1 - (slots[enders, None] * ring + at % ring)
        members = torch.where(at >= start[enders, None], enders[:, None] - back, held)
        pooled = self.ops.compress_pool(values, scores, self.state, members)
        kept = torch.where(position > end - ring, slots * ring + position % ring, -1).long()
        self.ops.store_compress_state(values, scores, self.state, kept)
        entry = (position // RATIO)[enders].long()
        pages = self.block_tables[(slots - 1)[enders].long(), entry // PAGE]
        flat = pages.long() * PAGE + entry % PAGE
        records = self.ops.pack_kv(pooled.bfloat16(), "fp4_e4m3_16")
        self.ops.store_records(self.compressed, flat, records)
        keys = self._gather("index_keys", rows)[enders].contiguous()
        self.ops.store_records(self.keys, flat, self.ops.pack_kv(keys, "fp4_e8m0_32"))
        return {int(row): latent for row, latent in zip(enders, pooled, strict=True)}


def run(family: str, sequences: list[Sequence], schedule: list[list[tuple[int, int]]]) -> Layer:
    layer = Layer(family, sequences)
    for chunks in schedule:
        layer.step(chunks)
    return layer


def alone(sequences: list[Sequence]) -> list[list[tuple[int, int]]]:
    """Every sequence in one step of its own."""
    return [[(s, sequence.length)] for s, sequence in enumerate(sequences)]


def mixed(sequences: list[Sequence], sizes: list[int]) -> list[list[tuple[int, int]]]:
    """Steps that advance all unfinished sequences by chunk sizes taken in turn from ``sizes``."""
    left, schedule, turn = [s.length for s in sequences], [], 0
    while any(left):
        chunks = []
        for s, remaining in enumerate(left):
            if remaining:
                count = min(sizes[turn % len(sizes)], remaining)
                turn += 1
                left[s] -= count
                chunks.append((s, count))
        schedule.append(chunks)
    return schedule


def identical(one: Layer, other: Layer) -> None:
    assert one.results.keys() == other.results.keys(), "same positions"
    for row, expected in other.results.items():
        for a, b in zip(one.results[row], expected, strict=True):
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)), row


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    isa, threads = cpu.get_isa(), cpu.get_num_threads()
    yield
    cpu.set_isa(isa)
    cpu.set_num_threads(threads)


lengths = st.lists(st.integers(1, 45), min_size=1, max_size=4)
chunk_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), lengths=lengths, sizes=chunk_sizes)
def test_chunking_and_batching_change_nothing(seed: int, lengths: list[int], sizes: list[int]) -> None:
    torch.manual_seed(seed)
    sequences = [Sequence(length) for length in lengths]
    whole = run("cpu", sequences, alone(sequences))
    identical(run("cpu", sequences, mixed(sequences, sizes)), whole)
    identical(run("cpu", sequences, mixed(sequences, [1])), whole)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_instruction_sets_change_nothing(isa: str, threads: int) -> None:
    torch.manual_seed(3)
    sequences = [Sequence(length) for length in (40, 7, 23)]
    whole = run("cpu", sequences, mixed(sequences, [5, 1, 9]))
    try:
        cpu.set_isa(isa)
    except ValueError:
        pytest.skip(f"this CPU has no {isa}")
    cpu.set_num_threads(threads)
    identical(run("cpu", sequences, mixed(sequences, [4, 2])), whole)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), lengths=lengths, sizes=chunk_sizes)
def test_agrees_with_the_reference(seed: int, lengths: list[int], sizes: list[int]) -> None:
    torch.manual_seed(seed)
    sequences = [Sequence(length) for length in lengths]
    schedule = mixed(sequences, sizes)
    actual, expected = run("cpu", sequences, schedule), run("reference", sequences, schedule)
    for row, other in expected.results.items():
        for a, b in zip(actual.results[row], other, strict=True):
            if a.dtype == torch.int32:
                assert torch.equal(a, b), f"selection of {row}"
            else:
                tolerance = 2.0**-7 if a.dtype == torch.bfloat16 else 1e-5
                limit = tolerance * float(b.float().abs().max())
                assert float((a.float() - b.float()).abs().max()) <= limit, row
    assert torch.equal(actual.ring, expected.ring), "the rings hold the same records"
    assert torch.equal(actual.state, expected.state), "compressor states are copies of the inputs"


@pytest.mark.parametrize("family", ["reference", "cpu"])
def test_candidate_blocks_match_the_published_ones(family: str) -> None:
    golden = load_file(str(Path(__file__).parents[1] / "data" / "kernels.safetensors"))
    scores, mask = golden["candidates/scores"][0], golden["candidates/prefill_mask"][0]
    size, block, keep = scores.shape[0], 4, 3
    # One-hot keys make the score of entry j equal to query element j; ranks keep the order within bf16.
    ranks = torch.stack([row.unique(return_inverse=True)[1] + 1 for row in scores]).float()
    q = torch.zeros(size, 1, 32)
    q[:, 0, :size] = ranks
    keys = torch.eye(size, 32).bfloat16()
    cache = ops.family(family).pack_kv(keys, "fp4_e8m0_32").reshape(2, 13, -1).contiguous()
    table = torch.arange(2, dtype=torch.int32)[None]
    rows, visible = torch.zeros(size, dtype=torch.int32), torch.arange(1, size + 1, dtype=torch.int32)
    weights = torch.ones(size, 1).bfloat16()
    args = q.bfloat16(), weights, cache, table, rows, visible
    indices, blocks = ops.family(family).index_topk(*args, 5, None, block, keep)
    for row in range(size):
        kept = {int(b) for b in blocks[row] if b >= 0}
        expected = {int(j) // block for j in mask[row].nonzero()[:, 0] if j <= row}
        assert kept == expected, row
        order = scores[row, : row + 1].argsort(descending=True, stable=True)[:5].sort().values
        assert indices[row][indices[row] >= 0].tolist() == order.tolist(), row


def test_ties_take_the_lowest_entry_and_nothing_visible_selects_nothing() -> None:
    q = torch.ones(3, 2, 32).bfloat16()
    cache = ops.cpu.pack_kv(torch.ones(12, 32).bfloat16(), "fp4_e8m0_32").reshape(3, 4, -1).contiguous()
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    owner, visible = torch.zeros(3, dtype=torch.int32), torch.tensor([0, 3, 12], dtype=torch.int32)
    args = q, torch.ones(3, 2).bfloat16(), cache, table, owner, visible, 4
    indices, blocks = ops.cpu.index_topk(*args, None, 4, 2)
    assert indices.tolist() == [[-1] * 4, [0, 1, 2, -1], [0, 1, 2, 3]]
    assert blocks.tolist() == [[-1, -1], [0, -1], [0, 2]], "the newest block stays, then the lowest"
    restricted, _ = ops.cpu.index_topk(*args, torch.tensor([[0], [0], [2]], dtype=torch.int32), 4, 0)
    assert restricted.tolist() == [[-1] * 4, [0, 1, 2, -1], [8, 9, 10, 11]]
    nothing, _ = ops.cpu.index_topk(*args, torch.empty(3, 0, dtype=torch.int32), 4, 0)
    assert (nothing == -1).all(), "no candidate blocks, no entries"


def test_long_index_lists_span_segments() -> None:
    """More entries than one unit of work scores, against a direct computation."""
    torch.manual_seed(5)
    entries = 4000
    keys, q = torch.randn(entries, 64).bfloat16(), quantised(torch.randn(2, 4, 64).bfloat16())
    cache = ops.cpu.pack_kv(keys, "fp4_e8m0_32").reshape(125, 32, -1).contiguous()
    table = torch.arange(125, dtype=torch.int32)[None]
    owner, visible = torch.zeros(2, dtype=torch.int32), torch.tensor([entries, 3111], dtype=torch.int32)
    args = q, torch.rand(2, 4).bfloat16(), cache, table, owner, visible, 300, None, 8, 20
    expected = ops.reference.index_topk(*args)
    for threads in (1, 2):
        cpu.set_num_threads(threads)
        for one, other in zip(ops.cpu.index_topk(*args), expected, strict=True):
            assert torch.equal(one, other), f"{threads} threads"


@pytest.mark.parametrize("family", ["reference", "cpu"])
@pytest.mark.parametrize("slots", [[-1, 4], [4, -1], [-1, -1], [0, 5], []])
def test_skipped_slots_write_nothing(family: str, slots: list[int]) -> None:
    before = torch.arange(100, 130, dtype=torch.uint8).reshape(2, 3, 5)
    records = torch.arange(1, 11, dtype=torch.uint8).reshape(2, 5)[: len(slots)]
    cache, expected = before.clone(), before.clone().flatten(0, 1)
    ops.family(family).store_records(cache, torch.tensor(slots, dtype=torch.int64), records)
    for slot, record in zip(slots, records, strict=True):
        if slot >= 0:
            expected[slot] = record
    assert torch.equal(cache.flatten(0, 1), expected)
