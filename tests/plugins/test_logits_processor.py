"""Fault 35: a processor that reads history gets what was committed, however it was activated."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
NAME = "no-repeated-bigram"
SOURCE = f'''
class Thing:
    """Bans tokens that would repeat a pair of neighbouring tokens, and writes down what it sees."""

    seam = "logits_processor"
    name = "{NAME}"
    seen = []

    def check_parameters(self, parameters):
        if not isinstance(parameters, bool):
            raise ValueError(f"it must be true or false, got {{parameters!r}}")

    def process(self, logits, rows):
        for place, row in enumerate(rows):
            self.seen.append((row.request_id, row.prompt_token_ids, row.output_token_ids))
            tokens = [*row.prompt_token_ids.tolist(), *row.output_token_ids.tolist()]
            followers = [b for a, b in zip(tokens, tokens[1:]) if a == tokens[-1]]
            if row.parameters and followers:
                logits[place, followers] = -float("inf")
        return logits
'''
PROMPTS = [[11] * 120 + [7] * (5 - place) for place in range(4)]
OPTED = [SamplingParams(temperature=t, seed=5, max_tokens=12, ignore_eos=True, extra={NAME: True}) for t in (0, 0.7)]
PARAMS = [*OPTED, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), OPTED[1]]


def given() -> Any:
    """The component as an object of this process."""
    scope: dict[str, Any] = {}
    exec(SOURCE, scope)
    return scope["Thing"]()


def run(plugin: Any, speculate: Any = "off", **limits: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Output token ids, and the engine's metrics."""
    with LLM(MODEL, plugins=[plugin], speculate=speculate, disable_log_stats=True, **limits) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.error for output in outputs] == [None] * 4
        return [output.outputs[0].token_ids for output in outputs], llm.get_metrics()


def check_history(seen: list[Any], outputs: list[list[int]]) -> None:
    """Each opted-in request was asked about once per token, with exactly the tokens before it."""
    for place, output in enumerate(outputs):
        views = [(p.tolist(), o.tolist()) for request, p, o in seen if request == str(place)]
        wanted = [(PROMPTS[place], output[:n]) for n in range(len(output))]
        assert views == (wanted if PARAMS[place].extra else [])


def check_history_with_drafts(seen: list[Any], outputs: list[list[int]]) -> None:
    """Each opted-in request was asked about every token it has, and besides only about what drafts would make of it."""
    for place, output in enumerate(outputs):
        views = [(p.tolist(), o.tolist()) for request, p, o in seen if request == str(place)]
        assert all(prompt == PROMPTS[place] for prompt, _ in views)
        histories = [history for _, history in views]
        if PARAMS[place].extra:
            assert all(output[:n] in histories for n in range(len(output)))
            assert all(len(history) <= len(output) + 4 for history in histories)
        else:
            assert not histories


def bigrams(tokens: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(tokens))


def test_history_is_what_was_committed_by_object_by_name_and_after_preemption(install: Any) -> None:
    plugin = given()
    outputs, _ = run(plugin)
    check_history(plugin.seen, outputs)
    for place in (0, 1, 3):
        new = bigrams(PROMPTS[place][-1:] + outputs[place])
        assert len(set(new)) == len(new) and not set(new) & set(bigrams(PROMPTS[place]))
    with LLM(MODEL, disable_log_stats=True) as llm:
        plain = llm.generate(PROMPTS[2:3], PARAMS[2:3], use_tqdm=False)
    assert outputs[2] == plain[0].outputs[0].token_ids

    drafting = given()
    drafting.seen = []
    with_drafts, metrics = run(drafting, speculate=4)
    assert with_drafts == outputs and metrics["verifications"] > 0
    check_history_with_drafts(drafting.seen, outputs)

    install(NAME, "logits_processor", SOURCE)
    by_name, metrics = run(NAME, num_pages=3, max_num_seqs=4)
    assert by_name == outputs and metrics["num_preemptions"] > 0
    import plugin_no_repeated_bigram  # type: ignore[import-not-found]

    check_history(plugin_no_repeated_bigram.Thing.seen, outputs)


def test_a_wrong_parameter_or_a_failure_ends_that_request_and_names_the_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = given()
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}
    with LLM(MODEL, plugins=[plugin], disable_log_stats=True) as llm:
        wrong, fine = llm.generate(
            ["a", "b"], [SamplingParams(extra={NAME: 3}), SamplingParams(**fields)], use_tqdm=False
        )
        assert wrong.error == f"extra[{NAME!r}] is refused: it must be true or false, got 3"
        monkeypatch.setattr(plugin, "process", lambda logits, rows: logits[0])
        failed, same = llm.generate(
            ["a", "b"], [SamplingParams(extra={NAME: True}), SamplingParams(**fields)], use_tqdm=False
        )
        assert (
            f"logits processor {NAME!r} failed" in (failed.error or "") and failed.outputs[0].finish_reason == "error"
        )
        assert same.outputs[0].token_ids == fine.outputs[0].token_ids
        llm.engine.scheduler.audit()
