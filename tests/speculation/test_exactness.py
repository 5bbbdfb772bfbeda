"""Drafts change nothing: with coupled and greedy verification a request says, token for token, what it says without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, RequestOutput, SamplingParams

CHECKPOINTS = ["v41-tiny-bf16", "v41-tiny-fp8fp4", "v41-long-fp8fp4"]
VOCAB = 512
#: Little room: prompts in pieces, few rows for drafts, and pages for half of the sequences.
TIGHT = {"max_num_batched_tokens": 24, "max_chunk_tokens": 7, "num_pages": 3, "max_num_seqs": 4}

MakeLLM = Callable[..., LLM]


def few(examples: int) -> Any:
    """Few examples, and no shrinking: each runs models many times."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    return settings(max_examples=examples, phases=phases, suppress_health_check=[HealthCheck.function_scoped_fixture])


class NoRepeats:
    """A logits processor that reads the history: the last tokens may not come again."""

    seam = "logits_processor"
    name = "no-repeats"

    def check_parameters(self, parameters: Any) -> None: ...

    def process(self, logits: Any, rows: Any) -> Any:
        for place, row in enumerate(rows):
            recent = [*row.prompt_token_ids.tolist(), *row.output_token_ids.tolist()][-row.parameters :]
            logits[place, recent] = -float("inf")
        return logits


PROCESSOR = NoRepeats()
token_ids = st.integers(0, VOCAB - 1)
prompts = st.lists(st.lists(token_ids, min_size=1, max_size=60), min_size=1, max_size=6)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.3]),
    seed=st.integers(0, 99),
    top_k=st.sampled_from([-1, 20]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-5.0, 6.0]), max_size=3),
    banned_token_ids=st.lists(token_ids, max_size=3),
    forced_token_ids=st.lists(token_ids, max_size=4),
    stop_token_ids=st.lists(token_ids, max_size=60),
    min_tokens=st.integers(0, 6),
    max_tokens=st.integers(6, 14),
    logprobs=st.sampled_from([None, None, 2]),
    logprobs_mode=st.sampled_from(["raw", "processed"]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
    extra=st.sampled_from([{}, {}, {"no-repeats": 3}]),
)


def said(outputs: Sequence[RequestOutput]) -> list[Any]:
    """Everything an output says but its times."""
    return [(output.outputs, output.prompt_logprobs, output.error) for output in outputs]


def run(llm: LLM, sequences: Sequence[list[int]], wanted: Sequence[SamplingParams]) -> list[RequestOutput]:
    outputs = llm.generate(sequences, wanted, use_tqdm=False)
    llm.engine.scheduler.audit()
    return outputs


@few(4)
@given(sequences=prompts, data=st.data())
@pytest.mark.parametrize("checkpoint", CHECKPOINTS[:2])
def test_the_checkpoints_own_drafts_change_nothing(
    make_llm: MakeLLM, checkpoint: str, sequences: list[list[int]], data: Any
) -> None:
    wanted = [data.draw(params) for _ in sequences]
    options = {"checkpoint": checkpoint, "plugins": (PROCESSOR,)}
    expected = said(run(make_llm("off", **options), sequences, wanted))
    assert said(run(make_llm(4, **options), sequences, wanted)) == expected
    assert said(run(make_llm("auto", **options), sequences, wanted)) == expected
    assert said(run(make_llm(2, verifier="greedy", **options, **TIGHT), sequences, wanted)) == expected


@few(10)
@given(
    sequences=prompts,
    data=st.data(),
    kind=st.sampled_from(["right", "wrong", "hostile"]),
    confidence=st.sampled_from([-4.0, 0.0, 4.0]),
)
def test_no_drafter_changes_anything(
    make_llm: MakeLLM, speculator: Any, oracle: Any, sequences: list[list[int]], data: Any, kind: str, confidence: float
) -> None:
    wanted = [data.draw(params) for _ in sequences]
    options = {"plugins": (PROCESSOR,)}
    plain = run(make_llm("off", **options), sequences, wanted)
    oracle.learn(plain)
    speculator.guess = {"right": oracle.right, "wrong": oracle.wrong, "hostile": oracle.hostile}[kind]
    speculator.confidence = lambda depth, token: confidence
    for llm in (
        make_llm(1, fake=True, **options),
        make_llm(5, fake=True, **options),
        make_llm("auto", fake=True, **options),
        make_llm(3, fake=True, **options, **TIGHT),
    ):
        assert said(run(llm, sequences, wanted)) == said(plain)


def test_samples_of_one_prompt(make_llm: MakeLLM, speculator: Any, oracle: Any) -> None:
    """Forks start from a copy of the state and the tokens of a prompt, and draft each for itself."""
    sequences = [[(5 * i) % 500 for i in range(130)], [8, 9]]
    wanted = [SamplingParams(n=4, temperature=1.1, seed=i, max_tokens=12, ignore_eos=True) for i in range(2)]
    plain = run(make_llm(), sequences, wanted)
    oracle.learn(plain)
    speculator.guess = oracle.hostile
    for llm in (make_llm(5, fake=True), make_llm(4), make_llm(3, fake=True, **TIGHT)):
        assert said(run(llm, sequences, wanted)) == said(plain)


def test_right_drafts_save_steps(make_llm: MakeLLM, speculator: Any, oracle: Any) -> None:
    sequences = [[7, 8, 9], [400, 3]]
    wanted = [SamplingParams(temperature=t, seed=4, max_tokens=25, ignore_eos=True) for t in (0.0, 1.0)]
    plain = run(make_llm(), sequences, wanted)
    oracle.learn(plain)
    speculator.guess = oracle.right
    llm = make_llm(5, fake=True)
    before = llm.get_metrics()["steps"]
    outputs = run(llm, sequences, wanted)
    assert said(outputs) == said(plain)
    assert llm.get_metrics()["steps"] - before == 5, "one for the prompt, four with five drafts and one more token"
    for output in outputs:
        assert output.metrics is not None
        speculation = output.metrics.speculation
        assert (speculation.num_verifications, speculation.num_drafted, speculation.num_accepted) == (4, 20, 20)
        assert speculation.drafted_by_depth == speculation.accepted_by_depth == [4] * 5
        assert speculation.mean_accepted_length == 6.0


def test_long_contexts(make_llm: MakeLLM) -> None:
    """Windows, compressed pages and index choices beyond a page, on the checkpoint that has them all."""
    sequences = [[(7 * i) % 500 for i in range(290)], [5, 9, 5, 11] * 33, [3] * 127]
    wanted = [SamplingParams(temperature=t, seed=1, max_tokens=12, ignore_eos=True) for t in (0.0, 0.8, 0.3)]
    name = CHECKPOINTS[2]
    expected = said(run(make_llm("off", checkpoint=name), sequences, wanted))
    assert said(run(make_llm(4, checkpoint=name), sequences, wanted)) == expected


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_penalties_act_under_speculation(make_llm: MakeLLM, field: str) -> None:
    """Fault 7: the same ids at every depth, and different ones for opposite penalties."""
    outputs = {}
    for sign in (-2.0, 2.0):
        wanted = SamplingParams(temperature=0, max_tokens=14, min_tokens=9, repetition_penalty=1.3, **{field: sign})
        results = [run(make_llm(depth), ["la la la la"], [wanted]) for depth in ("off", 1, 4)]  # type: ignore[list-item]
        assert said(results[0]) == said(results[1]) == said(results[2])
        outputs[sign] = results[0][0].outputs[0].token_ids
    assert outputs[-2.0] != outputs[2.0]


def test_a_seed_gives_the_same_alone_in_a_crowd_and_after_preemption(
    make_llm: MakeLLM, speculator: Any, oracle: Any
) -> None:
    """Fault 9 as well: copies without a seed differ."""
    wanted = SamplingParams(temperature=1.2, seed=42, max_tokens=14, ignore_eos=True)
    sequence = list(range(100, 220))
    plain = run(make_llm(), [sequence], [wanted])
    oracle.learn(plain)
    speculator.guess = oracle.hostile
    expected = plain[0].outputs[0].token_ids
    assert run(make_llm(5, fake=True), [sequence], [wanted])[0].outputs[0].token_ids == expected
    others = [SamplingParams(temperature=5.0, max_tokens=14, ignore_eos=True) for _ in range(31)]
    crowd = run(make_llm(5, fake=True), [sequence] * 32, [*others, wanted])
    assert crowd[31].outputs[0].token_ids == expected
    assert len({tuple(output.outputs[0].token_ids) for output in crowd}) >= 31
    tight = make_llm(3, fake=True, **TIGHT)
    before = tight.get_metrics()["num_preemptions"]
    preempted = run(tight, [sequence] * 4, [wanted] * 4)
    assert tight.get_metrics()["num_preemptions"] > before
    assert [output.outputs[0].token_ids for output in preempted] == [expected] * 4


def test_stop_strings_inside_accepted_drafts_cut_as_without(make_llm: MakeLLM, speculator: Any, oracle: Any) -> None:
    base = {"temperature": 0.9, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    whole = run(make_llm(), ["The lamp is lit."], [SamplingParams(**base)])
    oracle.learn(whole)
    speculator.guess = oracle.right
    text = whole[0].outputs[0].text
    for begin in range(0, len(text) - 2, max(1, len(text) // 12)):
        for include in (False, True):
            wanted = SamplingParams(**base, stop=[text[begin : begin + 2]], include_stop_str_in_output=include)
            plain = run(make_llm(), ["The lamp is lit."], [wanted])
            assert plain[0].outputs[0].finish_reason == "stop"
            for depth in (1, 5):
                assert said(run(make_llm(depth, fake=True), ["The lamp is lit."], [wanted])) == said(plain)
            pieces = list(make_llm(5, fake=True).stream("The lamp is lit.", wanted))
            assert "".join(piece.text for piece in pieces) == plain[0].outputs[0].text
            assert [t for piece in pieces for t in piece.token_ids] == plain[0].outputs[0].token_ids


class Poison:
    """A logits processor that leaves nothing to draw after some tokens."""

    seam = "logits_processor"
    name = "poison"

    def check_parameters(self, parameters: Any) -> None: ...

    def process(self, logits: Any, rows: Any) -> Any:
        for place, row in enumerate(rows):
            if len(row.output_token_ids) >= row.parameters:
                logits[place] = -float("inf")
        return logits


POISON = Poison()


def test_a_row_with_nothing_to_draw_ends_its_request_alone(make_llm: MakeLLM, speculator: Any, oracle: Any) -> None:
    """Fault 33, with the failing row in the middle of right drafts."""
    sequences = [[11 + i, 5, 80] for i in range(5)]
    fine = SamplingParams(temperature=0.7, seed=5, max_tokens=12, ignore_eos=True)
    wanted = [fine, fine, SamplingParams(temperature=0, max_tokens=12, extra={"poison": 4}), fine, fine]
    plain = run(make_llm("off", plugins=(POISON,)), sequences, wanted)
    assert [output.error is None for output in plain] == [True, True, False, True, True]
    oracle.learn(run(make_llm(), sequences, [fine, fine, SamplingParams(temperature=0, max_tokens=12), fine, fine]))
    speculator.guess = oracle.right
    for speculate, fake in ((5, True), (2, True), (4, False)):
        assert said(run(make_llm(speculate, fake=fake, plugins=(POISON,)), sequences, wanted)) == said(plain)
