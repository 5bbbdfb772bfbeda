"""Attention of draft blocks: what a block sees, and what its result depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer_kernels import cpu, ops

DIM, HEADS, SLOTS = 32, 5, 4
SINK = torch.linspace(-1, 1, HEADS)


class Case:
    """Random queries and keys of some blocks, each with a ring that holds what its sequence had before."""

    def __init__(self, seed: int, starts: list[int], block: int, window: int, spare: int = 3) -> None:
        torch.manual_seed(seed)
        self.window, self.block, self.starts = window, block, starts
        rows = len(starts) * block
        self.q = torch.randn(rows, HEADS, DIM).bfloat16()
        self.records = ops.reference.pack_kv(torch.randn(rows, DIM).bfloat16(), "fp8_e8m0_32")
        held = torch.randn(SLOTS * (window + spare), DIM).bfloat16()
        self.ring = ops.reference.pack_kv(held, "fp8_e8m0_32").view(SLOTS, window + spare, -1)
        self.slots = [i % (SLOTS - 1) + 1 for i in range(len(starts))]

    def run(self, family: str, blocks: list[int] | None = None) -> Tensor:
        """The result of the given blocks (all), ``[blocks, B, H, D]``."""
        blocks = list(range(len(self.starts))) if blocks is None else blocks
        rows = torch.tensor([b * self.block + i for b in blocks for i in range(self.block)], dtype=torch.int64)
        places = ([self.slots[b] for b in blocks], [self.starts[b] for b in blocks])
        out: Tensor = ops.family(family).draft_attention(
            self.q[rows],
            SINK,
            0.2,
            self.ring,
            self.records[rows],
            *(torch.tensor(column, dtype=torch.int32) for column in places),
            self.window,
        )
        return out.view(len(blocks), self.block, HEADS, DIM)


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    isa, threads = cpu.get_isa(), cpu.get_num_threads()
    yield
    cpu.set_isa(isa)
    cpu.set_num_threads(threads)


seeds, blocks = st.integers(0, 2**31), st.integers(1, 7)
starts = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 5000)), min_size=1, max_size=6)


@settings(max_examples=30, derandomize=True)
@given(seed=seeds, starts=starts, block=blocks, window=st.sampled_from([1, 16, 70, 128]))
def test_agrees_with_the_reference(seed: int, starts: list[int], block: int, window: int) -> None:
    case = Case(seed, starts, block, window)
    value, expected = case.run("cpu").float(), case.run("reference").float()
    assert float((value - expected).abs().max()) <= 2.0**-7 * float(expected.abs().max())


@settings(max_examples=30, derandomize=True)
@given(seed=seeds, starts=starts, block=blocks)
def test_batches_change_nothing(seed: int, starts: list[int], block: int) -> None:
    case = Case(seed, starts, block, 16)
    together, backwards = case.run("cpu"), case.run("cpu", list(range(len(starts)))[::-1])
    assert torch.equal(together, backwards.flip(0))
    for b in range(len(starts)):
        assert torch.equal(together[b], case.run("cpu", [b])[0]), b


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_instruction_sets_change_nothing(isa: str, threads: int) -> None:
    case = Case(1, [0, 200, 31], 5, 128)
    whole = case.run("cpu")
    try:
        cpu.set_isa(isa)
    except ValueError:
        pytest.skip(f"this CPU has no {isa}")
    cpu.set_num_threads(threads)
    assert torch.equal(case.run("cpu"), whole)


@pytest.mark.parametrize("family", ["cpu", "reference"])
@pytest.mark.parametrize("start", [16, 17, 300])
def test_a_block_of_one_row_sees_a_window_one_longer(family: str, start: int) -> None:
    """The last position and the keys before it are what window attention over one key more sees."""
    case, place = Case(2, [start], 1, 16), torch.ones(1, dtype=torch.int32)
    window: Any = (case.ring, case.records, place, place * start, place * start, case.window + 1)
    expected = ops.family(family).sparse_attention(case.q, SINK, 0.2, *window, None, None, None, None)
    assert torch.equal(case.run(family)[0], expected)


@pytest.mark.parametrize("family", ["cpu", "reference"])
def test_every_row_sees_the_whole_block_and_nothing_older_than_the_window(family: str) -> None:
    case = Case(3, [40], 4, 16)
    before = case.run(family)
    visible = {p % 19 for p in range(24, 40)}
    for place in range(19):
        case.ring[1, place] += 1
        assert (not torch.equal(case.run(family), before)) == (place in visible), place
        case.ring[1, place] -= 1
    case.ring[0] += 1
    assert torch.equal(case.run(family), before), "another slot"
    case.records[3, :DIM] ^= 0x80  # the last key of the block, turned round
    assert all(not torch.equal(a, b) for a, b in zip(case.run(family)[0], before[0], strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slots": [SLOTS]}, r"slots must be in 0\.\.3, got 4\.\.4"),
        ({"slots": [-1]}, r"slots must be in 0\.\.3, got -1\.\.-1"),
        ({"slots": [1, 2]}, "rows of q must be a multiple of 2, got 3"),
        ({"slots": []}, "slots must name at least one block for 3 rows"),
        ({"window": 20}, "window_cache must have a ring of at least 20, got 19"),
    ],
)
def test_wrong_arguments_name_what_came_and_what_is_expected(change: dict[str, Any], words: str) -> None:
    case = Case(4, [40], 3, 16)
    slots = torch.tensor(change.get("slots", [1]), dtype=torch.int32)
    with pytest.raises(ValueError, match=words):
        ops.cpu.draft_attention(
            case.q, SINK, 0.2, case.ring, case.records, slots, torch.full_like(slots, 40), change.get("window", 16)
        )
