"""What is found, and that it saves steps without changing a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepinfer_prompt_lookup.lookup import lookup
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import DeepInferError
from deepinfer_core.testing import SpeculatorSuite

MODEL = Path(__file__).parents[4] / "tests" / "data" / "v41-tiny-bf16"
NAME = "prompt-lookup"


class TestConformance(SpeculatorSuite):
    plugin = NAME


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=14), st.integers(1, 4), st.integers(1, 6))
def test_the_longest_match_wins_the_last_one_of_those_and_is_continued(
    tokens: list[int], longest: int, count: int
) -> None:
    drafts, length = lookup(np.array(tokens, np.int32), longest, count)
    places = [
        (n, end)
        for n in range(1, longest + 1)
        for end in range(n, len(tokens))
        if tokens[end - n : end] == tokens[len(tokens) - n :]
    ]
    if not places:
        assert (drafts.tolist(), length) == ([], 0)
        return
    best, end = max(places)
    followed = list(tokens)
    for place in range(count):
        followed.append(followed[end + place])
    assert (drafts.tolist(), length) == (followed[len(tokens) :], best)


PROMPTS = [[11, 7, 5] * 40, [*range(90, 210)], [3, 4] * 60, [8] * 120]
FIELDS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
PARAMS = [
    SamplingParams(temperature=0, **FIELDS),
    SamplingParams(temperature=1, seed=3, **FIELDS),
    SamplingParams(temperature=0, repetition_penalty=1.1, logprobs=1, **FIELDS),
    # The prompt, said again, which is what is looked up.
    SamplingParams(temperature=0, forced_token_ids=[8] * 24, **FIELDS),
]


def run(**options: Any) -> tuple[list[Any], dict[str, Any]]:
    with LLM(MODEL, disable_log_stats=True, **options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.error for output in outputs] == [None] * len(PROMPTS)
        return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs], llm.get_metrics()


@pytest.mark.parametrize("speculate", [3, "auto"])
def test_tokens_are_those_without_it_also_after_preemption(speculate: Any) -> None:
    plain, _ = run(speculate="off")
    drafted, metrics = run(plugins=[NAME], speculate=speculate)
    squeezed, pressed = run(plugins=[NAME], speculate=speculate, num_pages=3)
    assert drafted == squeezed == plain
    assert metrics["drafted_tokens"] >= metrics["accepted_tokens"] > 0 and pressed["num_preemptions"] > 0


@pytest.mark.parametrize("key", ["num_drafts", "max_ngram"])
def test_a_bad_configuration_stops_start_up(key: str) -> None:
    with pytest.raises(DeepInferError, match=f"{key} must be at least 1, got 0"):
        LLM(MODEL, plugins=[NAME], plugin_config={NAME: {key: 0}})
