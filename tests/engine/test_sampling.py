"""Penalties, bias, masks and forced tokens through the whole engine, whatever else it does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams

PROMPT = "la la la la"
FEW = {"max_tokens": 10, "ignore_eos": True}
KINDS: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 2.0},
    "negative frequency": {"frequency_penalty": -2.0},
    "presence": {"presence_penalty": 2.0},
    "negative presence": {"presence_penalty": -2.0},
    "repetition": {"repetition_penalty": 1.3, "min_tokens": 9},
    "bias": {"logit_bias": {17: 3.5, 31: -100.0}},
    "allowed": {"allowed_token_ids": [*range(40, 90)]},
    "banned": {"banned_token_ids": [*range(0, 512, 3)]},
    "forced": {"forced_token_ids": [5, 5, 9], "frequency_penalty": 1.0},
    "processed": {"logprobs": 3, "logprobs_mode": "processed", "top_p": 0.8, "presence_penalty": 1.0},
}


def params(kind: str, **fields: Any) -> SamplingParams:
    return SamplingParams(**{**FEW, "temperature": 0.8, "seed": 42, **KINDS[kind], **fields})


def result(output: Any) -> Any:
    """What two runs of one request must agree on."""
    completion = output.outputs[0]
    return completion.token_ids, completion.text, completion.finish_reason, completion.stop_reason, completion.logprobs


def tokens(llm: LLM, params: SamplingParams, prompt: Any = PROMPT) -> list[int]:
    output = llm.generate([prompt], params, use_tqdm=False)[0]
    assert output.error is None
    return output.outputs[0].token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_penalties_act_in_the_direction_of_their_sign(llm, temperature):
    """Fault 7, without drafts: greedy requests are penalised too, and -2 differs from 2."""
    fields = {"temperature": temperature, "seed": 42, "max_tokens": 30, "ignore_eos": True}
    pairs = {"frequency_penalty": (2.0, -2.0), "presence_penalty": (2.0, -2.0), "repetition_penalty": (1.5, 0.5)}
    batch = [SamplingParams(**fields, **{name: value}) for name, values in pairs.items() for value in values]
    outputs = [output.outputs[0].token_ids for output in llm.generate([PROMPT] * 6, batch, use_tqdm=False)]
    for rare, often in zip(outputs[::2], outputs[1::2], strict=True):
        assert len(set(rare)) > len(set(often))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_alone_and_beside_every_other_kind(llm, kind):
    """Fault 5 and 7."""
    expected = result(llm.generate([PROMPT], params(kind), use_tqdm=False)[0])
    others = [params(other) for other in KINDS] + [SamplingParams(temperature=5.0), SamplingParams(temperature=0)]
    batch = [*others[:6], params(kind), *others[6:]]
    outputs = llm.generate([PROMPT] * len(batch), batch, use_tqdm=False)
    assert result(outputs[6]) == expected


def test_the_same_after_preemption(llm, make_llm):
    """What penalties count is rebuilt from the committed tokens, once."""
    small = make_llm(num_pages=3, max_num_seqs=8)
    prompts = [[11 + place % 3] * 122 for place in range(len(KINDS))]
    batch = [params(kind, max_tokens=12) for kind in KINDS]
    expected = [
        result(llm.generate([prompt], each, use_tqdm=False)[0]) for prompt, each in zip(prompts, batch, strict=True)
    ]
    before = small.get_metrics()["num_preemptions"]
    assert [result(output) for output in small.generate(prompts, batch, use_tqdm=False)] == expected
    assert small.get_metrics()["num_preemptions"] > before
    small.engine.scheduler.audit()


def test_repeated_prompts_differ_and_seeded_ones_repeat(llm):
    """Fault 9, the part with one output per request."""
    hot = SamplingParams(temperature=5.0, max_tokens=6, ignore_eos=True, presence_penalty=0.5)
    outputs = [tuple(o.outputs[0].token_ids) for o in llm.generate([PROMPT] * 16, hot, use_tqdm=False)]
    assert len(set(outputs)) >= 15
    seeded = [SamplingParams(temperature=5.0, max_tokens=6, seed=seed, ignore_eos=True) for seed in range(8)]
    first, second = (llm.generate([PROMPT] * 8, seeded, use_tqdm=False) for _ in range(2))
    assert [result(output) for output in first] == [result(output) for output in second]
    assert len({tuple(output.outputs[0].token_ids) for output in first}) == 8


def test_masks_hold(llm):
    allowed, banned = tokens(llm, params("allowed", max_tokens=30)), tokens(llm, params("banned", max_tokens=30))
    assert set(allowed) <= set(range(40, 90))
    assert all(token % 3 for token in banned)
    assert tokens(llm, SamplingParams(**FEW, logit_bias={7: 100})) == [7] * 10


def test_a_biased_end_token_stops_unless_it_is_ignored_and_not_before_min_tokens(llm):
    """Fault 25, as far as it is about bias."""
    eos = llm.engine.eos_token_ids[0]
    biased = {"logit_bias": {eos: 50}, "temperature": 0.6, "max_tokens": 8}
    assert tokens(llm, SamplingParams(**biased)) == [eos]
    assert tokens(llm, SamplingParams(**biased, ignore_eos=True)) == [eos] * 8
    late = tokens(llm, SamplingParams(**biased, min_tokens=4))
    assert eos not in late[:4] and late[4:] == [eos]


def test_forced_tokens_score_as_when_they_were_drawn(llm):
    """Teacher forcing of a request's own output gives its logprobs, raw and processed."""
    for mode in ("raw", "processed"):
        fields = {**FEW, "temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.5}
        fields |= {"logprobs": 4, "logprobs_mode": mode}
        free = llm.generate([PROMPT], SamplingParams(**fields, seed=1), use_tqdm=False)[0].outputs[0]
        forced = SamplingParams(**fields, forced_token_ids=free.token_ids, seed=2)
        again = llm.generate([PROMPT], forced, use_tqdm=False)[0].outputs[0]
        assert (again.token_ids, again.text, again.logprobs) == (free.token_ids, free.text, free.logprobs)


def test_nothing_ends_the_output_before_the_last_forced_token(llm):
    eos = llm.engine.eos_token_ids[0]
    forced = [72, eos, 72, eos]
    given = SamplingParams(temperature=0, max_tokens=9, forced_token_ids=forced, stop="b", stop_token_ids=[72])
    completion = llm.generate([PROMPT], given, use_tqdm=False)[0].outputs[0]
    assert completion.token_ids == forced and completion.finish_reason == "stop"
    short = SamplingParams(temperature=0, max_tokens=2, forced_token_ids=forced[:2], ignore_eos=True)
    assert tokens(llm, short) == forced[:2]
    masked = SamplingParams(
        max_tokens=2, forced_token_ids=[7, 7], banned_token_ids=[7], logprobs=0, logprobs_mode="processed"
    )
    completion = llm.generate([PROMPT], masked, use_tqdm=False)[0].outputs[0]
    assert completion.token_ids == [7, 7] and completion.cumulative_logprob == -math.inf
    nothing = {"allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 2, "logprobs": 2}
    for mode in ("raw", "processed"):
        both = SamplingParams(max_tokens=3, forced_token_ids=[7, 7], logprobs_mode=mode, **nothing)
        assert tokens(llm, both) == [7, 7, 9]


def test_only_tokens_that_can_be_drawn_are_among_the_most_likely(llm):
    few = SamplingParams(**FEW, top_k=3, logprobs=8, logprobs_mode="processed", seed=0)
    for position in llm.generate([PROMPT], few, use_tqdm=False)[0].outputs[0].logprobs:
        assert len(position) == 3
        assert sum(math.exp(entry.logprob) for entry in position.values()) == pytest.approx(1.0, abs=1e-5)


def test_a_mask_that_leaves_only_masked_end_tokens_fails_that_request_alone(llm):
    eos = llm.engine.eos_token_ids[0]
    hopeless = SamplingParams(max_tokens=4, min_tokens=2, allowed_token_ids=[eos])
    fine, failed = llm.generate([PROMPT] * 2, [params("bias"), hopeless], use_tqdm=False)
    assert "not allowed" in failed.error and failed.outputs[0].finish_reason == "error"
    assert result(fine) == result(llm.generate([PROMPT], params("bias"), use_tqdm=False)[0])


def test_ids_beyond_the_vocabulary_are_refused_by_name(llm):
    for name, value in (("allowed_token_ids", [512]), ("logit_bias", {512: 1.0}), ("forced_token_ids", [9, 512])):
        output = llm.generate([PROMPT], SamplingParams(**{name: value}), use_tqdm=False)[0]
        assert f"{name} must be below the vocabulary's size 512, got [512]" in output.error
    everything = SamplingParams(banned_token_ids=[*range(512)])
    assert "banned_token_ids must leave a token" in llm.generate([PROMPT], everything, use_tqdm=False)[0].error


def test_extra_names_must_be_active_components(llm):
    output = llm.generate([PROMPT], SamplingParams(extra={"no-such": 1}), use_tqdm=False)[0]
    assert "extra names 'no-such', which is no active logits_processor component (active: none)" in output.error
