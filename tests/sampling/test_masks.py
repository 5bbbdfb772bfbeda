"""A row's mask over the vocabulary: the same as allowing exactly the ids whose bits are set."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import SamplerOutput, SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of, edited_logits
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.structured.vocabulary import mask_of

SAMPLER = DefaultSampler(num_threads=2)


def sample(logits: np.ndarray, batch: SamplingBatch) -> SamplerOutput:
    return SAMPLER.sample(torch.from_numpy(np.stack([logits] * len(batch))), batch)


def masked(batch: SamplingBatch, *masks: np.ndarray | None) -> SamplingBatch:
    """The batch with a mask for each row, or None."""
    given_masks = [mask for mask in masks if mask is not None]
    which = np.array([-1 if mask is None else 0 for mask in masks], np.int32)
    which[which == 0] = np.arange(len(given_masks))
    return attrs.evolve(batch, masks=(which, np.stack(given_masks)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, set[int], Drawn]:
    """Logits of any size, ids that a mask keeps, and a request."""
    size = draw(st.sampled_from([1, 7, 31, 32, 33, 64, 257]))
    ids = st.integers(0, size - 1)
    kept = draw(st.sets(ids) | st.just(set(range(size))))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1.0, 3.0])),
        top_k=draw(st.sampled_from([0, 2])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5])),
        logit_bias=draw(st.dictionaries(ids, st.floats(-9, 9), max_size=3)),
        logprobs=draw(st.sampled_from([None, 0, 1])),
        logprobs_mode=draw(st.sampled_from(["raw", "processed"])),
    )
    logits = np.random.default_rng(draw(st.integers(0, 99))).normal(size=size).astype(np.float32)
    return logits, kept, Drawn(params, draw(st.integers(0, 99)), (), draw(st.lists(ids, max_size=4)))


@given(cases())
@settings(max_examples=200)
def test_a_mask_is_the_same_as_allowed_ids(case: Any) -> None:
    logits, kept, request = case
    batch = masked(batch_of([request]), mask_of(kept, len(logits)))
    out = sample(logits, batch)
    if not kept:
        assert out.token_ids.tolist() == [-1]
        return
    params = attrs.evolve(request.params, allowed_token_ids=kept)
    same = sample(logits, batch_of([attrs.evolve(request, params=params)]))
    for field in ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs"):
        assert getattr(out, field).tobytes() == getattr(same, field).tobytes(), field
    assert int(out.token_ids[0]) in kept
    edited = edited_logits(logits[None], batch)[0]
    assert set(np.flatnonzero(edited > -np.inf).tolist()) == kept


@given(cases())
@settings(max_examples=50)
def test_masked_rows_and_others_in_one_batch_equal_each_alone(case: Any) -> None:
    logits, kept, request = case
    batch = masked(batch_of([request] * 4), None, mask_of(kept, len(logits)), None, mask_of([0], len(logits)))
    together = sample(logits, batch)
    alone = [int(sample(logits, batch.select([row])).token_ids[0]) for row in range(4)]
    assert together.token_ids.tolist() == alone


def test_a_mask_and_the_other_lists_exclude_together() -> None:
    batch = batch_of([Drawn(SamplingParams(temperature=0, allowed_token_ids=[1, 2, 3], banned_token_ids=[3]))])
    logits = np.arange(8, dtype=np.float32)
    assert sample(logits, masked(batch, mask_of([1, 3, 5], 8))).token_ids.tolist() == [1]
    assert sample(logits, masked(batch, mask_of([3, 5], 8))).token_ids.tolist() == [-1]


def test_bits_beyond_the_vocabulary_mean_nothing() -> None:
    batch = masked(batch_of([Drawn(SamplingParams(temperature=0))]), np.array([-1], np.int32))
    assert sample(np.array([0.0, 2.0, 1.0], np.float32), batch).token_ids.tolist() == [1]


def test_rows_may_share_a_mask() -> None:
    batch = batch_of([Drawn(SamplingParams(temperature=0))] * 3)
    shared = attrs.evolve(batch, masks=(np.array([0, -1, 0], np.int32), mask_of([2, 5], 8)[None]))
    assert sample(np.arange(8, dtype=np.float32), shared).token_ids.tolist() == [5, 7, 5]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (([0], [[1, 1]]), "mask must have 1 words, got 2"),
        (([0, 0], [[1]]), r"masks must have shape \[1\]"),
        (([0], [1]), r"words of masks must have shape \[M, W\]"),
        (([1], [[1]]), "masks must be numbers below 1 or -1, got 1"),
        (([-2], [[1]]), "masks must be numbers below 1 or -1, got -2"),
    ],
)
def test_the_native_sampler_refuses_masks_that_do_not_fit(masks: Any, message: str) -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match=message):
        _C.Sampler().sample(
            np.zeros((1, 8), np.float32), temperature=one, top_k=one, top_p=one, min_p=0 * one,
            seed=one.astype(np.uint64), position=one, num_logprobs=one, masks=masks,
        )  # fmt: skip
