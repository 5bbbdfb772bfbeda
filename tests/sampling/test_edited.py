"""Edited logits in Python are the native sampler's, bit for bit."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepinfer_core.interfaces.sampler import SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of, edited_logits, narrowed
from deepinfer_core.sampling_params import SamplingParams

VOCAB = 24
SAMPLER = DefaultSampler(num_threads=1)
tokens = st.integers(0, VOCAB - 1)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
values = st.one_of(st.floats(-20, 20, width=32), finite, st.just(-np.inf))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Drawn, int | None]:
    """A greedy request that edits logits in some ways, and the bits of a mask."""
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
    parts = draw(st.lists(tokens, max_size=6)), draw(st.lists(tokens, max_size=6))
    return Drawn(params, 0, *parts, (1,)), draw(st.none() | st.integers(0, 2**VOCAB - 1))


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[np.float32], SamplingBatch]:
    """Logits and a batch of such requests."""
    given_requests = draw(st.lists(requests(), min_size=1, max_size=4))
    logits = [draw(st.lists(values, min_size=VOCAB, max_size=VOCAB)) for _ in given_requests]
    batch = batch_of([request for request, _ in given_requests])
    which = np.array([-1 if mask is None else place for place, (_, mask) in enumerate(given_requests)], np.int32)
    words = np.array([[mask or 0] for _, mask in given_requests], np.int32)
    return np.array(logits, np.float32), attrs.evolve(batch, masks=(which, words) if (which >= 0).any() else None)


def reported(logits: NDArray[np.float32], batch: SamplingBatch) -> list[Any]:
    """Every id and its log-probability, most likely first: what the native sampler makes of them."""
    output = SAMPLER.sample(torch.from_numpy(logits), batch)
    return [output.token_ids.tolist(), output.top_ids.tolist(), output.top_logprobs.tobytes()]


def plain(rows: int) -> SamplingBatch:
    return batch_of([Drawn(SamplingParams(temperature=0, logprobs=VOCAB, logprobs_mode="processed"))] * rows)


@given(cases())
@settings(max_examples=200)
def test_the_native_sampler_sees_the_same_logits(case: tuple[NDArray[np.float32], SamplingBatch]) -> None:
    logits, batch = case
    given_bytes = logits.tobytes()
    edited = edited_logits(logits, batch)
    assert edited.dtype == np.float32 and logits.tobytes() == given_bytes
    assert reported(edited, plain(len(batch))) == reported(logits, batch)
    for row in range(len(batch)):
        assert edited_logits(logits[[row]], batch.select([row])).tobytes() == edited[row].tobytes()


def test_without_edits_it_is_a_copy() -> None:
    logits = np.arange(8, dtype=np.float32).reshape(2, 4)
    edited = edited_logits(logits, batch_of([Drawn()] * 2))
    assert edited.tolist() == logits.tolist() and not np.shares_memory(edited, logits)


# -- narrowed


@given(cases(), st.data())
def test_narrowed_rows_have_what_is_kept_of_what_they_had(case: Any, data: st.DataObject) -> None:
    logits, batch = case
    rows = np.array(data.draw(st.lists(st.integers(0, len(batch) - 1), unique=True)), np.intp)
    kept = np.array([data.draw(st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB)) for _ in rows], np.bool_)
    before, expected = batch.to_bytes(), edited_logits(logits, batch)
    expected[rows] = np.where(kept.reshape(-1, VOCAB), expected[rows], -np.inf)
    result = narrowed(batch, rows, kept.reshape(-1, VOCAB))
    assert edited_logits(logits, result).tobytes() == expected.tobytes() and batch.to_bytes() == before
    assert reported(logits, result) == reported(expected, plain(len(batch)))


@pytest.mark.parametrize("size", [1, 8, 31, 32, 33, 100])
def test_rows_may_be_chosen_by_a_bool_and_vocabularies_have_any_size(size: int) -> None:
    logits = np.arange(3 * size, dtype=np.float32).reshape(3, size)
    kept = np.arange(size) == np.array([[0], [size // 2]])
    batch = narrowed(batch_of([Drawn(SamplingParams(temperature=0))] * 3), np.array([True, False, True]), kept)
    output = SAMPLER.sample(torch.from_numpy(logits), batch)
    assert output.token_ids.tolist() == [0, size - 1, size // 2]


def test_masks_of_another_vocabulary_are_refused() -> None:
    batch = attrs.evolve(batch_of([Drawn()]), masks=(np.zeros(1, np.int32), np.zeros((1, 2), np.int32)))
    with pytest.raises(ValueError, match="masks of 24 tokens have 1 words, got 2"):
        narrowed(batch, np.array([0]), np.ones((1, VOCAB), np.bool_))
