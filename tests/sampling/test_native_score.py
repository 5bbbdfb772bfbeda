"""Native scoring of given tokens: what sampling reports of the tokens it draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core import _C

SAMPLER = _C.Sampler(num_threads=2)


def score(logits, token_ids, counts, sampler=SAMPLER):
    return sampler.score(
        np.asarray(logits, np.float32),
        token_ids=np.asarray(token_ids, np.int32),
        num_logprobs=np.asarray(counts, np.int32),
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(1, 6))
def test_scores_are_those_of_log_softmax(seed, vocab, rows):
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=(rows, vocab)) * 4).astype(np.float32)  # rounded: ties
    tokens, counts = rng.integers(0, vocab, rows), rng.integers(0, min(vocab, 9) + 1, rows)
    found, logprobs, ranks, offsets, top_ids, top_logprobs = score(logits, tokens, counts)
    wide = logits.astype(np.float64)
    expected = wide - wide.max(1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(1, keepdims=True))
    assert found.tolist() == tokens.tolist()
    assert np.diff(offsets).tolist() == counts.tolist()
    for row in range(rows):
        order = np.argsort(-logits[row], kind="stable")
        assert ranks[row] == order.tolist().index(tokens[row]) + 1
        assert logprobs[row] == pytest.approx(expected[row, tokens[row]], abs=1e-5)
        part = slice(offsets[row], offsets[row + 1])
        assert top_ids[part].tolist() == order[: counts[row]].tolist()
        np.testing.assert_allclose(top_logprobs[part], expected[row, order[: counts[row]]], atol=1e-5)


@pytest.mark.parametrize("isa", ["plain", "best"])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_instructions_and_neighbours_change_no_bit(isa, threads):
    logits = np.random.default_rng(1).normal(size=(40, 8000)).astype(np.float32)
    tokens = np.arange(40) * 7
    sampler = _C.Sampler(num_threads=threads, isa=isa)
    together = score(logits, tokens, [2] * 40, sampler)
    for row in range(40):
        alone = score(logits[row : row + 1], tokens[row : row + 1], [2])
        assert alone[1][0] == together[1][row] and alone[2][0] == together[2][row]
        assert alone[5].tolist() == together[5][2 * row : 2 * row + 2].tolist()


def test_it_agrees_with_what_sampling_reports():
    logits = np.random.default_rng(2).normal(size=(5, 3000)).astype(np.float32)
    ones, zeros = np.ones(5), np.zeros(5, np.int32)
    drawn = SAMPLER.sample(
        logits, temperature=ones, top_k=zeros, top_p=ones, min_p=0 * ones, seed=np.arange(5, dtype=np.uint64),
        position=np.arange(5), num_logprobs=np.full(5, 3, np.int32),
    )  # fmt: skip
    for first, second in zip(drawn, score(logits, drawn[0], [3] * 5), strict=True):
        assert first.tolist() == second.tolist()


def test_rows_without_an_answer_and_impossible_tokens():
    inf = math.inf
    logits = [[0, math.nan, 1], [inf, 0, 1], [-inf, -inf, -inf], [0, -inf, 1]]
    found, logprobs, ranks, _, top_ids, top_logprobs = score(logits, [0, 0, 0, 1], [1, 1, 1, 3])
    assert found.tolist() == [-1, -1, -1, 1]
    assert np.isnan(logprobs[:3]).all() and logprobs[3] == -inf
    assert ranks.tolist() == [0, 0, 0, 3]
    assert top_ids.tolist() == [-1, -1, -1, 2, 0, 1]
    assert np.isnan(top_logprobs[:3]).all()


@pytest.mark.parametrize(
    ("token", "count", "message"),
    [
        (3, 0, r"token ids must be in \[0, 3\), got 3"),
        (-1, 0, r"token ids must be in \[0, 3\), got -1"),
        (0, 4, r"num_logprobs must be in \[0, 3\], got 4"),
        (0, -1, r"num_logprobs must be in \[0, 3\], got -1"),
    ],
)
def test_what_is_out_of_range_is_refused(token, count, message):
    with pytest.raises(ValueError, match=message):
        score([[0, 1, 2]], [token], [count])


def test_shapes_must_match():
    with pytest.raises(ValueError, match=r"token_ids must have shape \[1\]"):
        score([[0, 1, 2]], [0, 1], [0])
    with pytest.raises(ValueError, match=r"logits must have shape \[rows, vocab_size\], got 1 dimensions"):
        score([0, 1, 2], [0], [0])
    assert [len(part) for part in score(np.zeros((0, 3)), [], [])] == [0, 0, 0, 1, 0, 0]
