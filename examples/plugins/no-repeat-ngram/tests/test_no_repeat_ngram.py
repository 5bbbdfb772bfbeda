"""No n-gram comes twice, however the plugin was activated, and whatever happens to the request meanwhile."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepinfer_no_repeat_ngram.processor import NoRepeatNgram, completions
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.testing import LogitsProcessorSuite

MODEL = Path(__file__).parents[4] / "tests" / "data" / "v41-tiny-bf16"
NAME = "no-repeat-ngram"


class TestConformance(LogitsProcessorSuite):
    plugin = NAME
    parameters = 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
def test_completions_are_what_would_repeat(tokens: list[int], n: int) -> None:
    def ngrams(ids: list[int]) -> list[tuple[int, ...]]:
        return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]

    repeating = [token for token in range(4) if len(tokens) >= n and ngrams([*tokens, token])[-1] in ngrams(tokens)]
    assert completions(np.array(tokens, np.int32), n).tolist() == repeating


class Recorder(NoRepeatNgram):
    """The processor as an object, which writes down what it is shown."""

    seam = "logits_processor"
    name = NAME

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], list[int]] = {}

    def process(self, logits: Any, rows: Any) -> Any:
        for row in rows:
            self.seen[row.request_id, len(row.output_token_ids)] = row.output_token_ids.tolist()
        return super().process(logits, rows)


PROMPTS = [[11] * 120 + [7] * (5 - place) for place in range(4)]
PARAMS = [
    SamplingParams(temperature=place % 2, seed=5, max_tokens=12, ignore_eos=True, extra={NAME: 2} if place else {})
    for place in range(4)
]


def run(plugin: Any, **limits: Any) -> tuple[list[list[int]], int]:
    """Output ids, and how often a request was preempted."""
    with LLM(MODEL, plugins=[plugin], disable_log_stats=True, **limits) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.error for output in outputs] == [None] * 4
        return [output.outputs[0].token_ids for output in outputs], llm.get_metrics()["num_preemptions"]


def test_by_name_by_object_and_after_preemption_it_sees_the_committed_tokens() -> None:
    by_name, _ = run(NAME)
    recorder = Recorder()
    by_object, preemptions = run(recorder, num_pages=3, max_num_seqs=4)
    assert by_object == by_name and preemptions > 0
    for place, output in enumerate(by_object):
        seen = {step: ids for (request, step), ids in recorder.seen.items() if request == str(place)}
        assert seen == ({n: output[:n] for n in range(12)} if PARAMS[place].extra else {})
    for prompt, params, output in zip(PROMPTS, PARAMS, by_name, strict=True):
        pairs = list(itertools.pairwise([*prompt[-1:], *output]))
        is_free = len(set(pairs)) == len(pairs) and not set(pairs) & set(itertools.pairwise(prompt))
        assert is_free or not params.extra


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None, [2]])
def test_a_wrong_n_is_refused_alone(value: Any) -> None:
    with pytest.raises(ValueError, match="n must be an integer >= 1, got"):
        NoRepeatNgram().check_parameters(value)
