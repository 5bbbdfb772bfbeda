"""Grouped-query attention over pages: what a row sees, and what its result depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer_kernels import cpu, ops

SCALE = 0.25


class Case:
    """Sequences in scattered pages, and a query at some of their positions.

    rows: ``(sequence, position)``.
    """

    def __init__(
        self, seed: int, lengths: list[int], rows: list[tuple[int, int]], *,
        kv_heads: int = 2, group: int = 3, dim: int = 32, entries: int = 16,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.rows, self.lengths = rows, lengths
        self.q = torch.randn(len(rows), kv_heads * group, dim).bfloat16()
        pages = [-(-length // entries) for length in lengths]
        shuffled = torch.randperm(sum(pages)) + 1
        self.tables = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
        for table, part in zip(self.tables, shuffled.split(pages), strict=True):
            table[: len(part)] = part
        shape = (sum(pages) + 1, kv_heads, entries, dim)
        self.keys, self.values = torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()

    def run(self, family: str = "cpu", window: int | None = None, pick: list[int] | None = None) -> Tensor:
        """The result of the rows at the places ``pick`` (all), in that order."""
        pick = list(range(len(self.rows))) if pick is None else pick
        owner, position = (
            torch.tensor([self.rows[i][part] for i in pick], dtype=torch.int32).reshape(-1) for part in (0, 1)
        )
        q = self.q[torch.tensor(pick, dtype=torch.int64)]
        out: Tensor = ops.family(family).paged_attention(
            q, self.keys, self.values, SCALE, self.tables, owner, position, window
        )
        return out

    def place(self, sequence: int, position: int) -> tuple[int, int]:
        """``(page, entry)`` of a position."""
        entries = self.keys.shape[2]
        return int(self.tables[sequence, position // entries]), position % entries


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    isa, threads = cpu.get_isa(), cpu.get_num_threads()
    yield
    cpu.set_isa(isa)
    cpu.set_num_threads(threads)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Chunks of several sequences (prefill and decode alike), heads and pages of many shapes."""
    lengths = draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    rows = []
    for sequence, length in enumerate(lengths):
        chunk = draw(st.integers(1, min(length, 40)))
        rows += [(sequence, position) for position in range(length - chunk, length)]
    shape = {
        "kv_heads": draw(st.sampled_from([1, 2, 5])),
        "group": draw(st.sampled_from([1, 2, 7, 70])),
        "dim": draw(st.sampled_from([8, 32, 50, 64])),
        "entries": draw(st.sampled_from([1, 7, 16, 128])),
    }
    return Case(draw(st.integers(0, 2**31)), lengths, rows, **shape)


windows = st.one_of(st.none(), st.integers(1, 220))


@settings(max_examples=25, derandomize=True)
@given(case=cases(), window=windows)
def test_agrees_with_the_reference(case: Case, window: int | None) -> None:
    value, expected = case.run("cpu", window).float(), case.run("reference", window).float()
    assert float((value - expected).abs().max()) <= 2.0**-7 * float(expected.abs().max())


@settings(max_examples=15, derandomize=True)
@given(case=cases(), window=windows)
def test_agrees_with_plain_attention(case: Case, window: int | None) -> None:
    """Against torch, each head's keys and values laid out one after the other."""
    out = case.run("cpu", window).double()
    group = case.q.shape[1] // case.keys.shape[1]
    for row, (sequence, position) in enumerate(case.rows):
        first = 0 if window is None else max(0, position - window + 1)
        places = torch.tensor([case.place(sequence, at) for at in range(first, position + 1)]).T
        keys, values = (
            x.transpose(1, 2)[places[0], places[1]].double().repeat_interleave(group, 1)
            for x in (case.keys, case.values)
        )
        shares = (torch.einsum("hd,thd->ht", case.q[row].double(), keys) * SCALE).softmax(-1)
        expected = torch.einsum("ht,thd->hd", shares, values)
        # Each probability and the result are rounded to bf16, which is within 2^-8.
        bound = 2.0**-7 * torch.einsum("ht,thd->hd", shares, values.abs()) + 1e-6
        assert ((out[row] - expected).abs() <= bound).all(), (row, sequence, position)


@settings(max_examples=25, derandomize=True)
@given(case=cases(), window=windows, seed=st.integers(0, 99))
def test_a_row_alone_equals_the_row_in_any_batch(case: Case, window: int | None, seed: int) -> None:
    whole = case.run("cpu", window)
    order = torch.randperm(len(case.rows), generator=torch.Generator().manual_seed(seed)).tolist()
    assert torch.equal(case.run("cpu", window, order), whole[order])
    for row in order[:5]:
        assert torch.equal(case.run("cpu", window, [row])[0], whole[row]), row


@settings(max_examples=10, derandomize=True)
@given(case=cases(), window=windows)
def test_threads_and_instruction_sets_change_nothing(case: Case, window: int | None) -> None:
    whole = case.run("cpu", window)
    for isa in ("avx512", "avx2", "plain"):
        try:
            cpu.set_isa(isa)
        except ValueError:  # this CPU lacks it
            continue
        for threads in (1, 3):
            cpu.set_num_threads(threads)
            assert torch.equal(case.run("cpu", window), whole), (isa, threads)


@settings(max_examples=15, derandomize=True)
@given(case=cases())
def test_a_window_that_holds_everything_is_no_window(case: Case) -> None:
    assert torch.equal(case.run("cpu", max(case.lengths)), case.run("cpu", None))


@pytest.mark.parametrize("family", ["cpu", "reference"])
@pytest.mark.parametrize("window", [None, 1, 20, 64, 65])
def test_a_row_sees_its_past_and_nothing_else(family: str, window: int | None) -> None:
    """What is not visible may even be NaN: later positions, other sequences, places of the null page."""
    case = Case(5, [150, 150], [(0, 99), (0, 100), (1, 3)])
    expected = case.run(family, window)
    seen = {(s, at) for s, p in case.rows for at in range(0 if window is None else max(0, p - window + 1), p + 1)}
    places = {case.place(*position) for position in seen}
    for page in range(len(case.keys)):
        for entry in range(case.keys.shape[2]):
            if (page, entry) not in places:
                case.keys[page, :, entry] = case.values[page, :, entry] = torch.nan
    assert torch.equal(case.run(family, window), expected)
    # The row at 99 does not see 100, although its neighbour does.
    page, entry = case.place(0, 100)
    case.keys[page, :, entry] = case.values[page, :, entry] = torch.nan
    changed = case.run(family, window)
    assert torch.equal(changed[0], expected[0]) and torch.equal(changed[2], expected[2])
    assert changed[1].isnan().all()


def test_no_rows_is_no_error() -> None:
    assert Case(1, [4], [(0, 3)]).run("cpu", None, []).shape == (0, 6, 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"positions": 32}, r"positions must be below 32 \(entries of block_tables\), got 32"),
        ({"seq_of_row": 1}, "seq_of_row must be below 1"),
        ({"heads": 5}, "heads of q must be a multiple of 2, got 5"),
        ({"dim": 16}, r"key_cache must have shape \[any, any, any, 16\]"),
        ({"window": 0}, "window_size must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_name_what_came_and_what_is_expected(change: dict[str, Any], words: str) -> None:
    case = Case(4, [32], [(0, 31)])
    q = case.q[:, : change.get("heads", 6), : change.get("dim", 32)].contiguous()
    owner, position = (
        torch.tensor([change.get(n, d)], dtype=torch.int32) for n, d in (("seq_of_row", 0), ("positions", 31))
    )
    with pytest.raises(ValueError, match=words):
        ops.cpu.paged_attention(q, case.keys, case.values, SCALE, case.tables, owner, position, change.get("window"))
