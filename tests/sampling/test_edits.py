"""Penalties, bias, masks and forced tokens: requests through the sampler, against all of its rules in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import SamplerOutput
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.sampling_params import SamplingParams

SAMPLER = DefaultSampler(num_threads=2)
VOCAB = 24
EOS = 3


# -- the rules


def edited(logits: NDArray[np.float32], prompt: list[int], output: list[int], params: SamplingParams) -> Any:
    """Logits after bias, penalties and masks, ``[V]`` float32."""
    out = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        out[token] += bias
    out = out.astype(np.float32).astype(np.float64)
    for token in {*output, *(prompt if params.repetition_penalty != 1 else ())}:
        factor = params.repetition_penalty
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        count = output.count(token)
        out[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    allowed = range(len(out)) if params.allowed_token_ids is None else params.allowed_token_ids
    banned = {*params.banned_token_ids, *([EOS] if len(output) < params.min_tokens else [])}
    mask = np.full(len(out), -np.inf)
    mask[sorted({*allowed} - banned)] = 0
    return (out + mask).astype(np.float32)


def kept(logits: NDArray[np.float32], params: SamplingParams) -> list[int]:
    """Ids that the filters leave, in order."""
    order = [token for token in np.argsort(-logits, kind="stable").tolist() if logits[token] > -np.inf]
    if params.temperature == 0:
        return order
    order = order[: params.top_k] if params.top_k > 0 else order
    weights = [math.exp((float(logits[t]) - float(logits[order[0]])) / params.temperature) for t in order]
    before = [0.0, *itertools.accumulate(weights)]
    return [
        token
        for place, token in enumerate(order)
        if params.top_p == 1 or before[place] < params.top_p * before[-1]
        if weights[place] >= params.min_p
    ]


def log_softmax(values: NDArray[np.float64]) -> Any:
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


def processed_logprobs(logits: NDArray[np.float32], params: SamplingParams) -> Any:
    """``[V]`` float64, -inf for what the filters leave out."""
    out = np.full(len(logits), -np.inf)
    if logits.max() == -np.inf:
        return out
    ids = kept(logits, params)
    out[ids] = log_softmax(logits[ids].astype(np.float64) / (params.temperature or 1.0))
    return out


def drawn(logits: NDArray[np.float32], params: SamplingParams, seed: int, position: int) -> int:
    ids = sorted(kept(logits, params)) if params.temperature else kept(logits, params)
    if params.temperature == 0:
        return ids[0]
    noise = -np.log(-np.log(_C.uniform_noise(seed, position, np.array(ids, np.uint32))))
    return ids[int(np.argmax(logits[ids].astype(np.float64) / params.temperature + noise))]


# -- the product


def run(
    logits: NDArray[np.float32], prompt: list[int], output: list[int], params: SamplingParams, seed: int, position: int
) -> SamplerOutput:
    batch = batch_of([Drawn(params, seed, prompt, output, (EOS,))])
    return SAMPLER.sample(torch.from_numpy(logits[None]), attrs.evolve(batch, position=np.array([position])))


tokens = st.integers(0, VOCAB - 1)
values = st.one_of(st.floats(-20, 20, width=32), st.integers(-2, 2).map(float), st.just(-math.inf))


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[np.float32], list[int], list[int], SamplingParams]:
    """Logits, a prompt, an output and parameters of every kind."""
    allowed = draw(st.none() | st.sets(tokens, min_size=1))
    banned = draw(st.sets(tokens, max_size=VOCAB // 2))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 5])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.3, 0.9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.2])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7, 5.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 2.0, -2.0, 0.1])),
        presence_penalty=draw(st.sampled_from([0.0, 2.0, -1.5])),
        logit_bias=draw(st.dictionaries(tokens, st.floats(-100, 100), max_size=4)),
        allowed_token_ids=allowed,
        banned_token_ids=banned - allowed if allowed is not None else banned,
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        logprobs=draw(st.sampled_from([None, 0, 3, VOCAB])),
        logprobs_mode=draw(st.sampled_from(["raw", "processed"])),
    )
    logits = np.array(draw(st.lists(values, min_size=VOCAB, max_size=VOCAB)), np.float32)
    sequence = st.lists(tokens, max_size=6)
    return logits, draw(sequence), draw(sequence), params


@given(cases(), st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@settings(max_examples=250)
def test_the_whole_chain_equals_the_reference(case: Any, seed: int, position: int) -> None:
    logits, prompt, output, params = case
    assume(logits.max() > -np.inf)
    expected = edited(logits, prompt, output, params)
    out = run(logits, prompt, output, params, seed, position)
    if expected.max() == -np.inf:
        assert out.token_ids.tolist() == [-1] and np.isnan(out.logprobs).all() and np.isnan(out.top_logprobs).all()
        return
    token = int(out.token_ids[0])
    assert token == drawn(expected, params, seed, position)
    if params.logprobs is None:
        return
    is_raw = params.logprobs_mode == "raw"
    source = logits if is_raw else expected
    logprobs = log_softmax(logits.astype(np.float64)) if is_raw else processed_logprobs(expected, params)
    order = np.argsort(-source, kind="stable").tolist()
    assert out.top_ids.tolist() == order[: params.logprobs]
    np.testing.assert_allclose(out.top_logprobs, logprobs[out.top_ids], atol=1e-4)
    np.testing.assert_allclose(out.logprobs, logprobs[[token]], atol=1e-4)
    assert out.ranks.tolist() == [order.index(token) + 1]


@given(cases(), tokens)
@settings(max_examples=60)
def test_a_forced_token_is_reported_with_the_logprobs_it_would_have_had(case: Any, token: int) -> None:
    logits, prompt, _, params = case
    params = attrs.evolve(params, forced_token_ids=[token], logprobs=2)
    assume(logits.max() > -np.inf)
    expected = edited(logits, prompt, [], params)
    out = run(logits, prompt, [], params, 1, 2)
    is_raw = params.logprobs_mode == "raw"
    logprobs = log_softmax(logits.astype(np.float64)) if is_raw else processed_logprobs(expected, params)
    assert out.token_ids.tolist() == [token]
    np.testing.assert_allclose(out.logprobs, logprobs[[token]], atol=1e-4)
    order = np.argsort(-(logits if is_raw else expected), kind="stable").tolist()
    assert out.top_ids.tolist() == order[:2] and out.ranks.tolist() == [order.index(token) + 1]


@given(st.lists(cases(), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_rows_of_every_kind_in_one_batch_equal_each_alone(batch: Any, random: Any) -> None:
    """Fault 5, with every kind of edit as neighbour."""
    requests, logits, alone = [], [], []
    for place, (row_logits, prompt, output, params) in enumerate(batch):
        if place % 4 == 0:
            params = attrs.evolve(params, forced_token_ids=[5] * (len(output) + 1))
        requests.append(Drawn(params, place, prompt, output, (EOS,)))
        logits.append(row_logits)
        alone.append(SAMPLER.sample(torch.from_numpy(row_logits[None]), batch_of(requests[-1:])))
    order = list(range(len(requests)))
    random.shuffle(order)
    together = SAMPLER.sample(torch.from_numpy(np.stack(logits)[order]), batch_of([requests[i] for i in order]))
    for place, i in enumerate(order):
        part = slice(*together.top_offsets[place : place + 2])
        assert together.token_ids[place] == alone[i].token_ids[0]
        assert together.logprobs[place].tobytes() == alone[i].logprobs[0].tobytes()
        assert together.top_ids[part].tolist() == alone[i].top_ids.tolist()
        assert together.top_logprobs[part].tobytes() == alone[i].top_logprobs.tobytes()


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_a_large_row_equals_the_reference_on_every_instruction_set(isa: str) -> None:
    """Many blocks, of which the edits touch some, all or none."""
    try:
        native = _C.Sampler(isa=isa)
    except ValueError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(5)
    size = 5_000
    logits = (rng.normal(size=size) * 4).astype(np.float32)
    few, many = rng.choice(size, 7, replace=False), rng.choice(size, 3_000, replace=False)
    sampler = DefaultSampler(num_threads=1)
    sampler._native = native
    for fields in (
        {"logit_bias": {int(t): 50.0 for t in few}},
        {"allowed_token_ids": few.tolist(), "banned_token_ids": few[:2].tolist()},
        {"banned_token_ids": np.argsort(-logits)[:40].tolist()},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
    ):
        for temperature in (0.0, 0.9):
            params = SamplingParams(temperature=temperature, top_p=0.9, logprobs=3, logprobs_mode="processed", **fields)
            output = rng.choice(many, 60).tolist() * 2
            out = sampler.sample(torch.from_numpy(logits[None]), batch_of([Drawn(params, 7, many, output)]))
            expected = edited(logits, many.tolist(), output, params)
            assert out.token_ids.tolist() == [drawn(expected, params, 7, len(many) + len(output))]
            logprobs = processed_logprobs(expected, params)
            np.testing.assert_allclose(out.top_logprobs, logprobs[out.top_ids], atol=1e-4)


def test_processed_logprobs_of_a_greedy_row_are_before_temperature_and_without_filters() -> None:
    logits = np.random.default_rng(1).normal(size=VOCAB).astype(np.float32)
    params = SamplingParams(temperature=0, top_k=1, logprobs=VOCAB, logprobs_mode="processed", banned_token_ids=[4])
    out = run(logits, [], [], params, 0, 0)
    masked = logits.astype(np.float64)
    masked[4] = -np.inf
    np.testing.assert_allclose(out.top_logprobs, log_softmax(masked)[out.top_ids], atol=1e-5)


def test_finite_logits_survive_extreme_penalties() -> None:
    big = np.finfo(np.float32).max
    logits = np.array([big, -big, 1.0, 0.0], np.float32)
    tiny = SamplingParams(temperature=0, repetition_penalty=1e-6, banned_token_ids=[3])
    for temperature in (0.0, 1.0):
        asked = attrs.evolve(tiny, temperature=temperature, logprobs=0, logprobs_mode="processed")
        out = run(logits, [0, 1, 2], [], asked, 0, 0)
        assert out.token_ids.tolist() == [0] and out.logprobs.tolist() == [0.0]
    huge = SamplingParams(temperature=0, repetition_penalty=1e6)
    assert run(np.array([-big, -np.inf], np.float32), [0], [], huge, 0, 0).token_ids.tolist() == [-1]
    assert run(np.array([-big, -5.0], np.float32), [0], [], huge, 0, 0).token_ids.tolist() == [1]


def test_the_logits_given_are_left_alone() -> None:
    logits = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)
    before = logits.copy()
    params = SamplingParams(logit_bias={1: 5}, frequency_penalty=1, allowed_token_ids=[1, 2, 4], banned_token_ids=[2])
    run(logits, [1], [1, 4], params, 0, 0)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"banned": ([0, 1], [8])}, r"banned token ids must be in \[0, 8\), got 8"),
        ({"allowed": ([0, 1], [-1])}, r"allowed token ids must be in \[0, 8\), got -1"),
        ({"banned": ([0, 2], [1])}, r"banned offsets must rise from 0 to the number of values \(1\)"),
        ({"banned": ([1, 1], [1])}, "banned offsets must rise"),
        ({"banned": ([0], [])}, r"banned offsets must have shape \[2\]"),
        ({"bias": ([0, 1], [1], [math.inf])}, "bias must be finite, got inf"),
        ({"bias": ([0, 1], [1], [])}, "bias offsets must rise"),
        ({"seen": ([0, 1], [1], [1])}, "seen and penalties go together"),
        ({"seen": ([0, 1], [1], [-1]), "penalties": [[1, 0, 0]]}, "seen counts must be >= 0, got -1"),
        ({"seen": ([0, 1], [1], [1]), "penalties": [[0, 0, 0]]}, "repetition_penalty must be finite and > 0, got 0"),
        ({"seen": ([0, 1], [1], [1]), "penalties": [[1, math.nan, 0]]}, "frequency_penalty must be finite"),
        ({"seen": ([0, 1], [1], [1]), "penalties": [[1, 0]]}, r"penalties must have shape \[1, 3\]"),
        ({"forced": [8]}, r"forced must be in \[-1, 8\), got 8"),
        ({"forced": [1, 2]}, r"forced must have shape \[1\]"),
        ({"processed_logprobs": []}, r"processed_logprobs must have shape \[1\]"),
    ],
)
def test_the_native_sampler_refuses_edits_out_of_range(arguments: dict[str, Any], message: str) -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match=message):
        _C.Sampler().sample(
            np.zeros((1, 8), np.float32), temperature=one, top_k=one, top_p=one, min_p=0 * one,
            seed=one.astype(np.uint64), position=one, num_logprobs=one, **arguments,
        )  # fmt: skip
