"""Parts of the recipe: rounding, export codes, the routed product, top-k, data windows, the optimizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_kernels.reference.codec import dequantize_weight, quantize_dequantize
from deepinfer_kernels.weights import Fp4Weight, Fp8Weight


def _values(seed: int, scale: float, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.randn(shape[0], 1, generator=generator).exp() * scale


@given(seed=st.integers(0, 2**31), exponent=st.integers(-24, 12))
def test_roundings_are_the_engine_s(seed: int, exponent: int) -> None:
    from train_tiny import quant

    x = _values(seed, 2.0**exponent, 3, 64).to(torch.bfloat16)
    for rounding, codec in (
        (quant.fp8_groups, "fp8_e8m0_32"), (quant.fp4_groups, "fp4_e8m0_32"), (quant.fp4_fine_groups, "fp4_e4m3_16"),
    ):  # fmt: skip
        assert torch.equal(rounding(x).to(torch.bfloat16), quantize_dequantize(x, codec)), codec


@given(seed=st.integers(0, 2**31), exponent=st.integers(-10, 6))
def test_exported_codes_hold_the_rounded_weights(seed: int, exponent: int) -> None:
    from train_tiny import export, quant

    weight = _values(seed, 2.0**exponent, 40, 96)
    codes, scale = export.fp8_tensors(weight)
    stored = Fp8Weight(codes.view(torch.uint8), scale.view(torch.uint8))
    assert torch.equal(dequantize_weight(stored), quant.fp8_blocks(weight))
    codes, scale = export.fp4_tensors(weight)
    stored4 = Fp4Weight(codes.view(torch.uint8), scale.view(torch.uint8))
    assert torch.equal(dequantize_weight(stored4), quant.fp4_groups(weight))


def test_a_rounded_value_passes_its_gradient_on() -> None:
    from train_tiny import quant

    x = torch.randn(4, 32, requires_grad=True)
    (quant.straight_through(x, quant.fp4_groups) * torch.arange(32.0)).sum().backward()
    assert torch.equal(x.grad, torch.arange(32.0).expand(4, 32))


@given(counts=st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any))
def test_the_grouped_product_and_its_gradients_equal_one_product_per_row(counts: list[int]) -> None:
    from train_tiny.experts import grouped_product

    owner = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x = torch.randn(len(owner), 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    ours = grouped_product(x, weight, torch.tensor(counts))
    plain = torch.einsum("rk,rmk->rm", x, weight[owner])
    torch.testing.assert_close(ours, plain)
    aim = torch.randn_like(plain)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (x, weight), aim), torch.autograd.grad(plain, (x, weight), aim), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@given(seed=st.integers(0, 2**31), count=st.integers(1, 12))
def test_top_entries_break_ties_by_the_lowest_index(seed: int, count: int) -> None:
    from train_tiny.attention import top_entries

    scores = (torch.randint(-3, 4, (2, 12), generator=torch.Generator().manual_seed(seed)) / 2).to(torch.bfloat16)
    order = scores.float().argsort(dim=-1, descending=True, stable=True)[:, :count]
    assert torch.equal(top_entries(scores, count), torch.zeros(2, 12, dtype=torch.bool).scatter(-1, order, True))


def test_orthogonalize_evens_out_singular_values() -> None:
    from train_tiny.optim import orthogonalize

    matrices = torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(0))
    sizes = torch.linalg.svdvals(orthogonalize(matrices).float())
    assert sizes.shape == (2, 32)
    assert float(sizes.min()) > 0.4
    assert float(sizes.max()) < 1.4


LINES = [
    *[""] * 101, "Welcome to the Jargon File", "", "   " + "An introduction. " * 20, "", "Glossary", "",
    "   :foo: interj.", "", "   The first", "   {metasyntactic variable}.", "", "           drawn  by  hand", "",
    "B", "",
    "   :bar: n.", "", "   [JARGON] A note.", "", "   The “second” one.", "",
    "Appendix\u00a0A.\u00a0Folklore", "", "   " + "A story. " * 30,
]  # fmt: skip


def test_entries_are_unwrapped_and_cleaned() -> None:
    from train_tiny import data

    assert list(data.entries(LINES)) == [
        ("foo", ["foo: interj.", "The first metasyntactic variable."]),
        ("bar", ["bar: n.", "[JARGON] A note.", 'The "second" one.']),
    ]
    assert [text.split(".")[0] for text in data.essays(LINES)] == ["Welcome to the Jargon File\n\nAn introduction",
                                                                  "Appendix A"]  # fmt: skip


def test_chats_ask_for_an_entry_and_answer_with_its_explanation() -> None:
    from train_tiny import data

    pairs = data.chat_pairs(list(data.entries(LINES)))
    assert pairs[0] == ("What is foo?", "The first metasyntactic variable.")
    assert pairs[1] == ("What does bar mean?", 'The "second" one.')


@pytest.mark.parametrize(("name", "text", "stated"), [
    ("hacker", "1. A person who codes. More.", "A hacker is a person who codes. More."),
    ("glitch", "[from German] (rare) 2. n. An interruption.", "A glitch is an interruption."),
    ("root", "The account that may do all.", "The root is the account that may do all."),
    ("Unix", "An interactive system.", "Unix is an interactive system."),
    ("ed", "The editor is here.", None),
    ("grok", "To understand.", None),
])  # fmt: skip
def test_definitions_become_statements(name: str, text: str, stated: str | None) -> None:
    from train_tiny import data

    assert data.statement(name, [f"{name}: n.", text]) == stated


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of two small documents."""
    import json

    from train_tiny import data

    folder = tmp_path_factory.mktemp("prepared")
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    (folder / "train.txt").write_text(data.SEPARATOR.join([text[:5000], text[5000:]]))
    (folder / "chat.json").write_text(json.dumps([["What is a licence?", "A permission."]]))
    focus = [["A licence is a permission."], ["What is a licence?", "A permission."]]
    (folder / "focus.json").write_text(json.dumps(focus))
    data.save_tokenizer(data.train_tokenizer([text], 512), folder)
    return folder


def test_epochs_are_repeatable_and_start_with_the_begin_token(work: Path) -> None:
    from train_tiny import data, settings

    streams = data.Streams(work)
    for number in (*range(4), data.FOCUS_FROM_EPOCH):
        windows = streams.epoch(number, 64)
        assert windows.shape[1] == 65
        assert (windows[:, 0] == settings.BOS).all()
        assert np.array_equal(windows, streams.epoch(number, 64))
    assert settings.USER in streams.epoch(1, 64)
    assert settings.USER not in streams.epoch(2, 64)


def test_resuming_skips_the_batches_that_were_seen(work: Path) -> None:
    from train_tiny import data
    from train_tiny.train import batches

    streams = data.Streams(work)
    whole = batches(streams, 0, 4, 64)
    seen = [next(whole) for _ in range(30)]
    resumed = batches(streams, 25, 4, 64)
    for epoch, windows in seen[25:]:
        again, same = next(resumed)
        assert again == epoch
        assert torch.equal(same, windows)
