"""Sampling parameters are refused here, by name, value and rule, or they are right."""

from __future__ import annotations

import copy
import json
import pickle
import random
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import RequestError
from deepinfer_core.sampling_params import SamplingParams

NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
INTEGERS = ["n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs"]
BIAS_RULE = "None or a table from token ids >= 0 to biases in [-100, 100]"
EXTRA_RULE = "None or a table from names to plain data (None, booleans, numbers, text, lists and tables of these)"
FLAGS = ["ignore_eos", "skip_special_tokens", "include_stop_str_in_output"]


def test_the_defaults_are_the_ecosystems() -> None:
    expected: dict[str, Any] = {
        "n": 1, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {},
        "allowed_token_ids": None, "banned_token_ids": (), "forced_token_ids": (), "seed": None, "stop": (),
        "stop_token_ids": (), "ignore_eos": False, "max_tokens": 16, "min_tokens": 0, "logprobs": None,
        "logprobs_mode": "raw", "prompt_logprobs": None, "skip_special_tokens": True,
        "include_stop_str_in_output": False, "structured": None, "extra": {},
    }  # fmt: skip
    assert attrs.asdict(SamplingParams()) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 1.7}, "top_p must be in (0, 1], got 1.7"),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.0"),
        ({"temperature": -0.1}, "temperature must be a finite number >= 0 (0 is greedy), got -0.1"),
        ({"min_p": 1.01}, "min_p must be in [0, 1], got 1.01"),
        ({"top_k": -2}, "top_k must be -1 or 0 (off) or a positive integer, got -2"),
        ({"n": 0}, "n must be an integer in 1..128, got 0"),
        ({"n": 129}, "n must be an integer in 1..128, got 129"),
        ({"n": 2, "temperature": 0}, "n must be 1 when temperature is 0 (all completions would be equal), got 2"),
        ({"max_tokens": 0}, "max_tokens must be None or an integer >= 1, got 0"),
        ({"min_tokens": -1}, "min_tokens must be an integer >= 0, got -1"),
        ({"min_tokens": 17}, "min_tokens must be <= max_tokens (16), got 17"),
        ({"seed": -1}, "seed must be None or an integer in [0, 2**64), got -1"),
        ({"seed": 2**64}, f"seed must be None or an integer in [0, 2**64), got {2**64}"),
        ({"logprobs": -1}, "logprobs must be None or an integer >= 0, got -1"),
        ({"stop": ""}, "stop must be None, a non-empty string or a list of them, got ''"),
        ({"stop": ["a", ""]}, "stop must be None, a non-empty string or a list of them, got ['a', '']"),
        ({"stop": [1]}, "stop must be None, a non-empty string or a list of them, got [1]"),
        ({"stop": b"a"}, "stop must be None, a non-empty string or a list of them, got b'a'"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids must be None or a list of token ids >= 0, got [1, -1]"),
        ({"stop_token_ids": 3}, "stop_token_ids must be None or a list of token ids >= 0, got 3"),
        ({"stop_token_ids": [True]}, "stop_token_ids must be None or a list of token ids >= 0, got True"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a finite number > 0, got 0.0"),
        ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1"),
        ({"frequency_penalty": -3}, "frequency_penalty must be in [-2, 2], got -3.0"),
        ({"logit_bias": {5: 101}}, f"logit_bias must be {BIAS_RULE}, got {{5: 101.0}}"),
        ({"logit_bias": {-5: 1}}, f"logit_bias must be {BIAS_RULE}, got {{-5: 1.0}}"),
        ({"logit_bias": {"x": 1}}, f"logit_bias must be {BIAS_RULE}, got 'x'"),
        ({"logit_bias": {True: 1}}, f"logit_bias must be {BIAS_RULE}, got True"),
        ({"logit_bias": {5: "1"}}, f"logit_bias must be {BIAS_RULE}, got '1'"),
        ({"logit_bias": {5: float("nan")}}, f"logit_bias must be {BIAS_RULE}, got nan"),
        ({"logit_bias": [5]}, f"logit_bias must be {BIAS_RULE}, got [5]"),
        (
            {"logit_bias": {5: 1, "5": 2}},
            "logit_bias must be a table in which no token id comes twice, got {5: 1, '5': 2}",
        ),
        ({"allowed_token_ids": []}, "allowed_token_ids must be None or a non-empty list of token ids >= 0, got []"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids must be None or a non-empty list of token ids >= 0, got [-1]"),
        ({"banned_token_ids": 5}, "banned_token_ids must be None or a list of token ids >= 0, got 5"),
        ({"forced_token_ids": {5, 6}}, "forced_token_ids must be None or a list of token ids >= 0, got {5, 6}"),
        ({"forced_token_ids": [5] * 17}, "forced_token_ids must be at most max_tokens (16), got 17 of them"),
        (
            {"allowed_token_ids": [2, 1], "banned_token_ids": [3, 2, 1]},
            "allowed_token_ids must have an id that is not in banned_token_ids, got (1, 2)",
        ),
        (
            {"allowed_token_ids": [1, 2], "banned_token_ids": [2], "stop_token_ids": [1], "min_tokens": 2},
            "allowed_token_ids must have an id that is not in stop_token_ids while min_tokens is 2, got (1, 2)",
        ),
        ({"logprobs_mode": "cooked"}, "logprobs_mode must be 'raw' or 'processed', got 'cooked'"),
        ({"logprobs_mode": None}, "logprobs_mode must be 'raw' or 'processed', got None"),
        ({"extra": 3}, f"extra must be {EXTRA_RULE}, got 3"),
        ({"extra": {"a": {"b": {1, 2}}}}, f"extra must be {EXTRA_RULE}, got {{1, 2}}"),
        ({"extra": {3: 1}}, f"extra must be {EXTRA_RULE}, got the key 3, which is not text"),
        ({"extra": {"a": float("inf")}}, f"extra must be {EXTRA_RULE}, got inf"),
        ({"extra": {"a": len}}, f"extra must be {EXTRA_RULE}, got <built-in function len>"),
        ({"presense_penalty": 1}, "SamplingParams has no field 'presense_penalty'; did you mean 'presence_penalty'?"),
        ({"stop_token_ids": ["1"]}, "stop_token_ids must be None or a list of token ids >= 0, got '1'"),
        ({"temprature": 1}, "SamplingParams has no field 'temprature'; did you mean 'temperature'?"),
        ({"topk": 1}, "SamplingParams has no field 'topk'; did you mean 'top_k'?"),
        ({"zzz": 1}, "SamplingParams has no field 'zzz'"),
    ],
)
def test_refusals_name_field_rule_and_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**fields)
    assert str(refusal.value) == message
    with pytest.raises(RequestError) as refusal:
        SamplingParams.from_dict(fields)
    assert str(refusal.value) == message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", True, None, float("nan"), float("inf"), -float("inf"), [1.0], 1j, object()])
def test_numbers_are_finite_numbers(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name} must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["1", True, False, 1.0, float("nan"), [1]])
def test_integers_are_integers(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name} must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["n", "top_k", "min_tokens"])
def test_only_optional_integers_may_be_none(name: str) -> None:
    assert SamplingParams(max_tokens=None, seed=None, logprobs=None).max_tokens is None
    with pytest.raises(RequestError, match=f"{name} must be"):
        SamplingParams(**{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_flags_are_booleans(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name} must be True or False, got"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_numbers_of_numpy_and_others_are_accepted_as_plain_ones() -> None:
    fields = {"temperature": np.float32(0.5), "top_k": np.int64(3), "top_p": Fraction(1, 2), "min_p": 0}
    params = SamplingParams.from_dict({**fields, "seed": 2**64 - 1})
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.5, 3, 0.5, 0.0, 2**64 - 1)
    assert [type(value) for value in (params.temperature, params.top_k, params.min_p)] == [float, int, float]


def test_stops_are_normalised() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[7, 3, 7])
    assert params.stop == ("end",) and params.stop_token_ids == (3, 7)
    assert SamplingParams(stop=["b", "a", "b"]).stop == ("b", "a")
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams(stop=[], stop_token_ids=[])


def test_token_ids_are_normalised_and_forced_ones_keep_their_order() -> None:
    params = SamplingParams(allowed_token_ids={9, 3}, banned_token_ids=[5, 5], forced_token_ids=[7, 2, 7])
    assert (params.allowed_token_ids, params.banned_token_ids) == ((3, 9), (5,))
    assert params.forced_token_ids == (7, 2, 7)
    assert SamplingParams(logit_bias={"7": 1, 3: -2}).logit_bias == {3: -2.0, 7: 1.0}
    assert SamplingParams(logit_bias=None, extra=None) == SamplingParams(logit_bias={}, extra={})


def test_masks_may_meet_where_forced_tokens_stand() -> None:
    """Only drawn tokens need a choice."""
    fields = {"allowed_token_ids": [1], "stop_token_ids": [1], "min_tokens": 2}
    assert SamplingParams.from_dict({**fields, "forced_token_ids": [4, 4]}).tokens_before_stop == 2


@pytest.mark.parametrize(("min_tokens", "forced", "expected"), [(0, 0, 0), (3, 2, 3), (1, 4, 3), (0, 1, 0)])
def test_nothing_stops_before_min_tokens_or_the_last_forced_one(min_tokens: int, forced: int, expected: int) -> None:
    params = SamplingParams(min_tokens=min_tokens, forced_token_ids=[5] * forced)
    assert params.tokens_before_stop == expected


def test_params_are_immutable_values() -> None:
    params = SamplingParams(
        temperature=0.3, stop=["x"], seed=4, logit_bias={7: 1}, forced_token_ids=[3, 1], extra={"a": {"b": [1, None]}}
    )
    for mapping in (params.logit_bias, params.extra, params.extra["a"]):
        with pytest.raises(TypeError, match="frozen"):
            mapping["b"] = 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        params.seed = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        SamplingParams(0.3)  # type: ignore[call-arg, arg-type]
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
    assert SamplingParams.from_dict(json.loads(json.dumps(attrs.asdict(params)))) == params
    assert len({params, attrs.evolve(params), attrs.evolve(params, seed=5)}) == 2


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).is_greedy and not SamplingParams(temperature=1e-9).is_greedy


@given(st.integers(0, 2**64 - 1))
def test_a_given_seed_is_kept(seed: int) -> None:
    assert SamplingParams(seed=seed).resolve_seed(random.Random(0)) == seed


@given(st.integers(0, 2**64 - 1), st.integers(2, 128))
def test_completions_have_seeds_of_their_own(seed: int, n: int) -> None:
    seeds = SamplingParams(n=n).sample_seeds(seed)
    assert seeds[0] == seed and len(set(seeds)) == n and all(0 <= each < 2**64 for each in seeds)
    assert SamplingParams(n=2).sample_seeds(seed) == seeds[:2]


def test_a_missing_seed_is_drawn_anew_each_time() -> None:
    rng = random.Random(0)
    seeds = {SamplingParams().resolve_seed(rng) for _ in range(100)}
    assert len(seeds) == 100 and all(0 <= seed < 2**64 for seed in seeds) and max(seeds) > 2**60


def test_ids_outside_the_vocabulary_are_refused() -> None:
    SamplingParams(stop_token_ids=[511], logprobs=512, logit_bias={511: 1}).check_vocabulary(512)
    for name in ("allowed_token_ids", "banned_token_ids", "forced_token_ids"):
        with pytest.raises(RequestError, match=rf"{name} must be below the vocabulary's size 512, got \[512\]"):
            SamplingParams.from_dict({name: [1, 512]}).check_vocabulary(512)
    with pytest.raises(RequestError, match="banned_token_ids must leave a token to draw"):
        SamplingParams(banned_token_ids=[0, 1]).check_vocabulary(2)
    with pytest.raises(RequestError, match=r"stop_token_ids must be below the vocabulary's size 512, got \[512, 600\]"):
        SamplingParams(stop_token_ids=[3, 600, 512]).check_vocabulary(512)
    with pytest.raises(RequestError, match="logprobs must be at most the vocabulary's size 512, got 513"):
        SamplingParams(logprobs=513).check_vocabulary(512)
