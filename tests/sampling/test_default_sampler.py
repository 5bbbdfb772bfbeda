"""The core's sampler component: rows of requests in, tokens out, whatever surrounds them."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.interfaces.sampler import DraftingSampler, Sampler, SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.sampling_params import SamplingParams

SAMPLER = DefaultSampler(num_threads=2)


def logits(rows: int, vocab: int = 300, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def drawn(seed: int = 0, position: int = 0, **params: Any) -> Drawn:
    """A request of which the token at a position is to be drawn."""
    return Drawn(SamplingParams(**params), seed, np.zeros(position, np.int32))


def rows(*requests: Drawn) -> SamplingBatch:
    return batch_of(requests)


def test_it_fills_the_seam() -> None:
    assert isinstance(SAMPLER, Sampler) and isinstance(DefaultSampler(), DraftingSampler)


def test_greedy_is_torchs_argmax() -> None:
    batch = logits(9)
    out = SAMPLER.sample(batch, rows(*[drawn(temperature=0.0)] * 9))
    assert out.token_ids.tolist() == batch.argmax(-1).tolist() and out.token_ids.dtype == np.int32


def test_logprobs_are_torchs_log_softmax_of_the_raw_logits() -> None:
    batch = logits(3)
    out = SAMPLER.sample(batch, rows(drawn(temperature=0.3, logprobs=4), drawn(), drawn(top_k=2, logprobs=0)))
    expected = torch.log_softmax(batch.double(), -1)
    for i in (0, 2):
        assert out.logprobs[i] == pytest.approx(float(expected[i, out.token_ids[i]]), abs=1e-5)
    assert math.isnan(out.logprobs[1]) and out.ranks[1] == 0
    assert out.top_offsets.tolist() == [0, 4, 4, 4]
    top = expected[0].topk(4)
    assert out.top_ids.tolist() == top.indices.tolist()
    np.testing.assert_allclose(out.top_logprobs, top.values, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_a_seeded_row_does_not_notice_its_neighbours(size: int) -> None:
    """Fault 5: beside unseeded, seeded, greedy and failing rows, in any place, the draw is the same."""
    params: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "logprobs": 2}
    batch = logits(size)
    alone = SAMPLER.sample(batch[:1], rows(drawn(42, 5, **params)))
    rng = random.Random(size)
    neighbours = [
        drawn(SamplingParams().resolve_seed(rng), 3),
        drawn(7, 5, temperature=0.8),
        drawn(temperature=0.0),
        drawn(42, 5, banned_token_ids=[*range(300)]),
    ]
    for place in range(size):
        requests = [rng.choice(neighbours) for _ in range(size)]
        requests[place] = drawn(42, 5, **params)
        order = torch.roll(torch.arange(size), place)
        out = SAMPLER.sample(batch[order], rows(*requests))
        assert out.token_ids[place] == alone.token_ids[0] and out.logprobs[place] == alone.logprobs[0]
        assert out.top_ids.tolist() == alone.top_ids.tolist()


def test_repeated_prompts_differ_and_repeat_with_their_seeds() -> None:
    """Fault 9, as far as a sampler can have it."""
    rng = random.Random()
    batch = logits(1, 5000).expand(16, -1)
    requests = rows(*[drawn(SamplingParams().resolve_seed(rng), 12, temperature=5.0) for _ in range(16)])
    tokens = SAMPLER.sample(batch, requests).token_ids
    assert len(set(tokens.tolist())) >= 15
    assert SAMPLER.sample(batch, requests).token_ids.tolist() == tokens.tolist()


@given(st.integers(0, 6), st.integers(0, 4))
def test_stop_ids_are_banned_until_min_tokens_are_out(num_output_tokens: int, min_tokens: int) -> None:
    params = SamplingParams(temperature=0, min_tokens=min_tokens)
    batch = torch.zeros(1, 4)
    batch[0, 1], batch[0, 3] = 9.0, 8.0
    out = SAMPLER.sample(batch, rows(Drawn(params, 0, [], [0] * num_output_tokens, (1, 3))))
    assert out.token_ids.tolist() == [0 if num_output_tokens < min_tokens else 1]


@given(st.integers(1, 5))
@settings(max_examples=10)
def test_strided_and_double_logits(count: int) -> None:
    wide = logits(count, 600)
    strided = wide[:, ::2]
    requests = rows(*[drawn(i, 3) for i in range(count)])
    expected = SAMPLER.sample(strided.contiguous(), requests).token_ids.tolist()
    assert SAMPLER.sample(strided, requests).token_ids.tolist() == expected
    with pytest.raises(TypeError):
        SAMPLER.sample(strided.double(), requests)


def test_logits_that_need_gradients_and_an_empty_step() -> None:
    assert SAMPLER.sample(logits(1).requires_grad_(), rows(drawn())).token_ids.shape == (1,)
    assert SAMPLER.sample(torch.zeros(0, 300), rows()).token_ids.shape == (0,)


def test_huge_top_k_is_no_filter() -> None:
    batch = logits(1)
    got = SAMPLER.sample(batch, rows(drawn(3, 4, top_k=10**12))).token_ids
    assert got.tolist() == SAMPLER.sample(batch, rows(drawn(3, 4))).token_ids.tolist()


def test_rows_and_logits_must_match() -> None:
    with pytest.raises(ValueError, match=r"logits must have shape \[2, vocab_size\], got \(3, 300\)"):
        SAMPLER.sample(logits(3), rows(drawn(), drawn()))
