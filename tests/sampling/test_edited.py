"""Edited logits in Python are the native sampler's, bit for bit."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepinfer_core.interfaces.sampler import SamplingRow
from deepinfer_core.sampling import DefaultSampler, SamplingState, edited_logits
from deepinfer_core.sampling_params import SamplingParams

VOCAB = 24
SAMPLER = DefaultSampler(num_threads=1)
tokens = st.integers(0, VOCAB - 1)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
values = st.one_of(st.floats(-20, 20, width=32), finite, st.just(-np.inf))


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[np.float32], SamplingRow]:
    """Logits, and a greedy row that edits them in some ways."""
    allowed = draw(st.none() | st.sets(tokens, min_size=1))
    banned = draw(st.sets(tokens, max_size=VOCAB // 2))
    params = SamplingParams(
        temperature=0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7, 1e30])),
        frequency_penalty=draw(st.sampled_from([0.0, 2.0, -2.0, 0.1])),
        presence_penalty=draw(st.sampled_from([0.0, 2.0, -1.5])),
        logit_bias=draw(st.dictionaries(tokens, st.floats(-100, 100), max_size=4)),
        allowed_token_ids=allowed,
        banned_token_ids=banned - (allowed or set()),
        min_tokens=draw(st.sampled_from([0, 3])),
        logprobs=VOCAB,
        logprobs_mode="processed",
    )
    state = SamplingState("r", params, 0, draw(st.lists(tokens, max_size=6)), (1,))
    for token in draw(st.lists(tokens, max_size=6)):
        state.advance(token)
    mask = draw(st.none() | st.integers(-(2**31), 2**31 - 1))
    row = attrs.evolve(state.row(9), mask=None if mask is None else np.array([mask], np.int32))
    return np.array(draw(st.lists(values, min_size=VOCAB, max_size=VOCAB)), np.float32), row


def logprobs(logits: NDArray[np.float32], row: SamplingRow) -> list[Any]:
    """Every id and its log-probability, most likely first: what the native sampler makes of them."""
    output = SAMPLER.sample(torch.from_numpy(logits[None]), [row])
    return [output.token_ids.tolist(), output.top_ids.tolist(), output.top_logprobs.tobytes()]


@given(cases())
@settings(max_examples=200)
def test_the_native_sampler_sees_the_same_logits(case: tuple[NDArray[np.float32], SamplingRow]) -> None:
    logits, row = case
    given_bytes, plain = logits.tobytes(), SamplingParams(temperature=0, logprobs=VOCAB, logprobs_mode="processed")
    edited = edited_logits(logits, row)
    assert edited.dtype == np.float32 and logits.tobytes() == given_bytes
    assert logprobs(edited, SamplingRow(plain, 0, 9)) == logprobs(logits, row)


def test_without_edits_it_is_a_copy() -> None:
    logits = np.arange(4, dtype=np.float32)
    edited = edited_logits(logits, SamplingRow(SamplingParams(), 0, 9))
    assert edited.tolist() == logits.tolist() and not np.shares_memory(edited, logits)
