"""Structured outputs under drafts: each row is held to what the grammar allows after the drafts before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams

pytest.importorskip("xgrammar")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
STRUCTURED: list[dict[str, Any]] = [
    {"json_schema": SCHEMA, "max_whitespace": 0},
    {"regex": "(ab|cd){2,5}x"},
    {"choice": ["hello world", "hello there", "yes"]},
    {"json_object": True, "max_whitespace": 0},
]


@pytest.mark.parametrize("kind", ["right", "wrong", "hostile"])
def test_drafts_change_no_structured_output(
    make_llm: Callable[..., LLM], speculator: Any, oracle: Any, kind: str
) -> None:
    wanted = [
        SamplingParams(temperature=t, seed=7, max_tokens=24, structured=each, repetition_penalty=p, logprobs=1)
        for each in STRUCTURED
        for t, p in ((0.0, 1.0), (1.1, 1.3))
    ]
    wanted.append(SamplingParams(temperature=0.6, seed=2, max_tokens=24))
    prompts = [[40 + place, 7, 9] for place in range(len(wanted))]
    results = []
    speculator.guess = lambda tokens: getattr(oracle, kind)(tokens)
    for speculate, fake in (("off", False), (5, True), ("auto", True), (4, False)):
        llm = make_llm(speculate, fake=fake, plugins=("xgrammar",))
        outputs = llm.generate(prompts, wanted, use_tqdm=False)
        llm.engine.scheduler.audit()
        assert [output.error for output in outputs] == [None] * len(wanted)
        if speculate == "off":
            oracle.learn(outputs)
        results.append([output.outputs for output in outputs])
    assert all(result == results[0] for result in results)
    assert sum(outputs[0].finish_reason == "stop" for outputs in results[0]) >= 4
