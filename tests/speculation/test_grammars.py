"""Drafts under grammars: verified by the masks that would have been drawn by, so that outputs stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, RequestOutput, SamplingParams

VOCAB = 512
#: Little room: prompts in pieces, few rows for drafts, and pages for half of the sequences.
TIGHT = {"max_num_batched_tokens": 24, "max_chunk_tokens": 7, "num_pages": 3, "max_num_seqs": 4}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"items": {"enum": ["x", 1, None]}, "maxItems": 3}},
    "required": ["a"],
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{"begin": "<", "content": {"type": "regex", "pattern": "[a-c]{1,5}"}, "end": ">"}],
    },
}
GRAMMARS: list[Any] = [
    None,
    {"choice": ["red", "green", "greenish", "blue 東"]},
    {"regex": "[a-e ]{3,12}"},
    {"regex": "(ab|ba)*c?"},
    {"json_schema": SCHEMA, "max_whitespace": 1},
    {"json_object": True},
    {"structural_tag": TAG},
    {"ebnf": 'root ::= "(" root ")" | [a-z]*'},
]

MakeLLM = Callable[..., LLM]
token_ids = st.integers(0, VOCAB - 1)
params = st.builds(
    SamplingParams,
    structured=st.sampled_from(GRAMMARS),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    seed=st.integers(0, 99),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    banned_token_ids=st.sampled_from([[], [], [1], [80, 90]]),
    stop_token_ids=st.lists(token_ids, max_size=20),
    stop=st.sampled_from([[], [], ["b"]]),
    ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 4]),
    max_tokens=st.integers(4, 16),
    logprobs=st.sampled_from([None, 2]),
    logprobs_mode=st.sampled_from(["raw", "processed"]),
)


def said(outputs: Sequence[RequestOutput]) -> list[Any]:
    """Everything an output says but its times."""
    return [(output.outputs, output.error) for output in outputs]


def run(llm: LLM, wanted: Sequence[SamplingParams]) -> list[RequestOutput]:
    sequences = [[5 + place, 9, 30 + place] for place in range(len(wanted))]
    outputs = llm.generate(sequences, list(wanted), use_tqdm=False)
    llm.engine.scheduler.audit()
    return outputs


@settings(
    max_examples=12,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(wanted=st.lists(params, min_size=1, max_size=6), kind=st.sampled_from(["right", "wrong", "hostile"]))
def test_no_drafter_changes_what_a_grammar_makes(
    make_llm: MakeLLM, speculator: Any, oracle: Any, wanted: list[SamplingParams], kind: str
) -> None:
    plain = run(make_llm(), wanted)
    oracle.learn(plain)
    speculator.guess = {"right": oracle.right, "wrong": oracle.wrong, "hostile": oracle.hostile}[kind]
    speculator.confidence = lambda depth, token: 1.0
    for llm in (
        make_llm(1, fake=True),
        make_llm(5, fake=True),
        make_llm(3, fake=True, **TIGHT),
        make_llm(4),
        make_llm("auto"),
        make_llm(2, verifier="greedy"),
    ):
        assert said(run(llm, wanted)) == said(plain)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_drafts_beyond_the_end_of_a_grammar_leave_no_trace(
    make_llm: MakeLLM, speculator: Any, oracle: Any, ignore_eos: bool
) -> None:
    """The text is whole in the middle of right drafts; what follows them is thrown away, end token or not."""
    wanted = [
        SamplingParams(
            structured={"choice": [text]}, seed=1, max_tokens=20, ignore_eos=ignore_eos, banned_token_ids=ban
        )
        for text in ("red", "greenish", "東東")
        for ban in ([], [1])
    ]
    plain = run(make_llm(), wanted)
    assert [output.outputs[0].finish_reason for output in plain] == ["stop"] * len(wanted)
    oracle.learn(plain)
    speculator.guess = lambda tokens: [*oracle.right(tokens), 1, 1, 7, 7, 7][:5]
    assert said(run(make_llm(5, fake=True), wanted)) == said(plain)


def test_right_drafts_are_accepted_under_a_grammar(make_llm: MakeLLM, speculator: Any, oracle: Any) -> None:
    wanted = [SamplingParams(structured={"regex": "[a-z]{24}"}, seed=3, max_tokens=30, temperature=t) for t in (0, 1)]
    plain = run(make_llm(), wanted)
    oracle.learn(plain)
    speculator.guess = oracle.right
    llm = make_llm(5, fake=True)
    before = llm.get_metrics()["steps"]
    assert said(run(llm, wanted)) == said(plain)
    longest = max(len(output.outputs[0].token_ids) for output in plain)
    assert llm.get_metrics()["steps"] - before <= 2 + -(-longest // 6)
