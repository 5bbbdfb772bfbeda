"""What is kept, that it is all that is ever drawn, and that everything else is the core's sampler's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from deepinfer_top_n_sigma.sampler import Config, TopNSigma
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import DeepInferError
from deepinfer_core.interfaces.sampler import SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.testing import SamplerSuite

MODEL = Path(__file__).parents[4] / "tests" / "data" / "v41-tiny-bf16"
VOCAB = 50


class TestConformance(SamplerSuite):
    plugin = "top-n-sigma"


def rows(seed: int, *params: dict[str, Any]) -> SamplingBatch:
    return batch_of([Drawn(SamplingParams(**each), seed, [1, 2, 3]) for each in params])


def logits(seed: int) -> torch.Tensor:
    return 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


def within(values: torch.Tensor, n: float) -> set[int]:
    """Ids at most n standard deviations below the largest, from the definition."""
    distances = (values.max() - values).double() / values.double().std(correction=0)
    return set((distances <= n).nonzero()[:, 0].tolist())


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), n=st.sampled_from([0.5, 1.0, 2.0]), temperature=st.floats(0.2, 5.0))
def test_what_is_drawn_is_within_n_deviations_at_any_temperature(seed: int, n: float, temperature: float) -> None:
    values = logits(seed)
    kept = within(values, n)
    params = {"temperature": temperature, "logprobs": VOCAB, "logprobs_mode": "processed"}
    output = TopNSigma(Config(n=n)).sample(values[None], rows(seed, params))
    assert set(output.top_ids[output.top_logprobs > -np.inf].tolist()) == kept
    assert int(output.token_ids[0]) in kept
    expected = torch.log_softmax(values[sorted(kept)].double() / temperature, 0)
    assert output.top_logprobs[: len(kept)] == pytest.approx(sorted(expected.tolist(), reverse=True), abs=1e-4)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_wide_band_and_greedy_rows_change_nothing(seed: int) -> None:
    values = logits(seed).expand(3, -1)
    batch = rows(seed, {}, {"temperature": 0, "logprobs": 3}, {"logprobs": 2, "top_p": 0.5})
    wide, plain = TopNSigma(Config(n=100)).sample(values, batch), DefaultSampler().sample(values, batch)
    for field in attrs.fields(type(plain)):
        if field.name != "errors":
            assert getattr(wide, field.name).tobytes() == getattr(plain, field.name).tobytes()


def test_deviations_are_those_of_the_edited_logits() -> None:
    """A mask or a bias moves the band; it never leaves a row without a token that the request allows."""
    values = torch.zeros(VOCAB)
    values[:3] = torch.tensor([30.0, 1.0, 0.5])
    sampler = TopNSigma(Config(n=0.5))
    params = {"temperature": 3, "logprobs": 3, "logprobs_mode": "processed"}
    masked = sampler.sample(values[None], rows(1, {"banned_token_ids": [0], **params}))
    assert int(masked.token_ids[0]) == 1
    biased = sampler.sample(values[None], rows(1, {"logit_bias": {7: 50}, **params}))
    assert int(biased.token_ids[0]) == 7


def test_a_request_gets_its_tokens_whatever_runs_beside_it() -> None:
    prompts = [[11, 7, 5], [3] * 40, [90, 91]]
    params = [SamplingParams(temperature=1.5, seed=s, max_tokens=10, ignore_eos=True) for s in (1, 2, 3)]
    options: dict[str, Any] = {"plugin_config": {"top-n-sigma": {"n": 1.2}}, "disable_log_stats": True}
    with LLM(MODEL, plugins=["top-n-sigma"], **options) as llm:
        together = [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]
        alone = [
            llm.generate([p], [q], use_tqdm=False)[0].outputs[0].token_ids for p, q in zip(prompts, params, strict=True)
        ]
    with LLM(MODEL, disable_log_stats=True) as llm:
        plain = [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]
    assert together == alone and together != plain


@pytest.mark.parametrize(("key", "value"), [("n", 0), ("n", -1.0), ("n", float("nan")), ("m", 1.0)])
def test_a_bad_configuration_stops_start_up(key: str, value: float) -> None:
    with pytest.raises(DeepInferError, match="top-n-sigma"):
        LLM(MODEL, plugins=["top-n-sigma"], plugin_config={"top-n-sigma": {key: value}})
