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
from deepinfer_core.interfaces.sampler import LogitEdits, SamplerOutput, SamplingRow
from deepinfer_core.sampling import DefaultSampler, SamplingState, edited_logits
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.structured.vocabulary import mask_of

SAMPLER = DefaultSampler(num_threads=2)


def sample(logits: np.ndarray, *rows: SamplingRow) -> SamplerOutput:
    return SAMPLER.sample(torch.from_numpy(np.stack([logits] * len(rows))), list(rows))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, set[int], SamplingRow]:
    """Logits of any size, ids that a mask keeps, and a row without the mask."""
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
    state = SamplingState("", params, draw(st.integers(0, 99)), [])
    for token in draw(st.lists(ids, max_size=4)):
        state.advance(token)
    logits = np.random.default_rng(draw(st.integers(0, 99))).normal(size=size).astype(np.float32)
    return logits, kept, state.row(5)


@given(cases())
@settings(max_examples=200)
def test_a_mask_is_the_same_as_allowed_ids(case: Any) -> None:
    logits, kept, row = case
    masked = attrs.evolve(row, mask=mask_of(kept, len(logits)))
    out = sample(logits, masked)
    if not kept:
        assert out.token_ids.tolist() == [-1]
        return
    allowed = np.array(sorted(kept), np.int32)
    same = sample(logits, attrs.evolve(row, edits=attrs.evolve(row.edits or LogitEdits(), allowed=allowed)))
    for field in ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs"):
        assert getattr(out, field).tobytes() == getattr(same, field).tobytes(), field
    assert int(out.token_ids[0]) in kept
    edited = edited_logits(logits, masked)
    assert set(np.flatnonzero(edited > -np.inf).tolist()) == kept


@given(cases())
@settings(max_examples=50)
def test_masked_rows_and_others_in_one_batch_equal_each_alone(case: Any) -> None:
    logits, kept, row = case
    masked = attrs.evolve(row, mask=mask_of(kept, len(logits)))
    together = sample(logits, row, masked, row)
    alone = [sample(logits, each).token_ids[0] for each in (row, masked, row)]
    assert together.token_ids.tolist() == [int(token) for token in alone]


def test_a_mask_and_the_other_lists_exclude_together() -> None:
    row = SamplingState(
        "", SamplingParams(temperature=0, allowed_token_ids=[1, 2, 3], banned_token_ids=[3]), 0, []
    ).row(1)
    logits = np.arange(8, dtype=np.float32)
    assert sample(logits, attrs.evolve(row, mask=mask_of([1, 3, 5], 8))).token_ids.tolist() == [1]
    assert sample(logits, attrs.evolve(row, mask=mask_of([3, 5], 8))).token_ids.tolist() == [-1]


def test_bits_beyond_the_vocabulary_mean_nothing() -> None:
    row = SamplingRow(SamplingParams(temperature=0), 0, 0, mask=np.array([-1], np.int32))
    assert sample(np.array([0.0, 2.0, 1.0], np.float32), row).token_ids.tolist() == [1]


@pytest.mark.parametrize(
    ("masks", "message"),
    [([np.zeros(2, np.int32)], "mask must have 1 words, got 2"), ([None, None], "masks must have 1 entries, got 2")],
)
def test_the_native_sampler_refuses_a_mask_of_another_size(masks: Any, message: str) -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match=message):
        _C.Sampler().sample(
            np.zeros((1, 8), np.float32), temperature=one, top_k=one, top_p=one, min_p=0 * one,
            seed=one.astype(np.uint64), position=one, num_logprobs=one, masks=masks,
        )  # fmt: skip
