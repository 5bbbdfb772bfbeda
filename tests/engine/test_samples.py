"""Several completions of a prompt: each equals itself alone, and they share what they can."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from deepinfer_core import LLM, SamplingParams, hookimpl
from deepinfer_core.engine.llm_engine import LLMEngine
from deepinfer_core.errors import GenerationError
from deepinfer_core.outputs import CompletionOutput, RequestOutput

MakeLLM = Callable[..., LLM]
MakeEngine = Callable[..., LLMEngine]
PARAMS = SamplingParams(temperature=0.8, max_tokens=6, seed=42, ignore_eos=True, n=4)
PAGE = 128


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * place + salt) % 500 for place in range(length)]


def singles(params: SamplingParams) -> list[SamplingParams]:
    """Requests of one completion that are to equal those of ``params``."""
    assert params.seed is not None
    return [attrs.evolve(params, n=1, seed=seed) for seed in params.sample_seeds(params.seed)]


def at_index(output: RequestOutput, index: int) -> CompletionOutput:
    """The only completion, as if it were one of several."""
    return attrs.evolve(output.outputs[0], index=index)


def generate(llm: LLM, prompts: list[Any], params: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def run(
    engine: LLMEngine, request_id: str, ids: list[int], params: SamplingParams, *, stream: bool
) -> list[RequestOutput]:
    """Every output of a request, with an audit after each step."""
    engine.add_request(request_id, ids, params, stream=stream)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += (step := engine.step())
        assert len({output.request_id for output in step}) == len(step), "a request has one output per step"
        engine.scheduler.audit()
    return outputs


def joined(pieces: list[CompletionOutput]) -> dict[int, tuple[str, list[int], list[str]]]:
    """Text, token ids and finish reasons by index."""
    whole: dict[int, tuple[str, list[int], list[str]]] = {}
    for piece in pieces:
        text, ids, reasons = whole.get(piece.index, ("", [], []))
        reason = [] if piece.finish_reason is None else [piece.finish_reason]
        whole[piece.index] = (text + piece.text, ids + piece.token_ids, reasons + reason)
    return whole


@pytest.mark.parametrize("checkpoint", ["v41-tiny-bf16", "v41-tiny-fp8fp4"])
def test_each_completion_equals_a_request_of_its_own(make_llm: MakeLLM, checkpoint: str) -> None:
    llm = make_llm(checkpoint)
    params = attrs.evolve(PARAMS, logprobs=2, repetition_penalty=1.2)
    prompts = [prompt(length, length) for length in (1, 2, 3, 40, PAGE, PAGE + 1, PAGE + 2, 2 * PAGE + 9)]
    several = generate(llm, prompts, params)
    alone = generate(llm, [ids for ids in prompts for _ in range(4)], singles(params) * len(prompts))
    for place, output in enumerate(several):
        assert output.outputs == [at_index(alone[4 * place + index], index) for index in range(4)]
        assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4


def test_chunks_change_no_completion(llm: LLM, make_llm: MakeLLM) -> None:
    ids = [prompt(150), prompt(61, 5)]
    chunked = make_llm(max_num_batched_tokens=16)
    expected = [output.outputs for output in generate(llm, ids, PARAMS)]
    assert [output.outputs for output in generate(chunked, ids, PARAMS)] == expected


def test_fault_9_eight_completions_are_distinct_and_the_same_again_however_little_cache_there_is(
    llm: LLM, make_llm: MakeLLM
) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=140, seed=1, n=8, ignore_eos=True)
    small = make_llm(num_pages=6, max_num_seqs=8)
    (expected,), (again,), (cramped,) = (generate(each, [prompt(125)], params) for each in (llm, llm, small))
    assert small.get_metrics()["num_preemptions"] > 0
    assert cramped.metrics is not None and cramped.metrics.num_preemptions > 0
    assert len({tuple(completion.token_ids) for completion in expected.outputs}) == 8
    assert again.outputs == expected.outputs == cramped.outputs
    small.engine.scheduler.audit()
    assert small.engine.scheduler.num_free_pages == 6


def test_fault_5_a_seed_holds_beside_any_neighbour(llm: LLM) -> None:
    seeded = attrs.evolve(PARAMS, n=1)
    greedy = attrs.evolve(seeded, temperature=0.0)
    neighbours = [attrs.evolve(seeded, seed=None), attrs.evolve(seeded, seed=7), greedy, PARAMS]
    ids = prompt(20)
    (expected,) = generate(llm, [ids], seeded)
    for neighbour in neighbours:
        for batch in ([seeded, neighbour], [neighbour, seeded], [neighbour, seeded, neighbour, seeded]):
            outputs = generate(llm, [ids] * len(batch), batch)
            for output, params in zip(outputs, batch, strict=True):
                if params is seeded:
                    assert output.outputs == expected.outputs


def test_completions_without_a_seed_are_independent(llm: LLM) -> None:
    params = SamplingParams(temperature=5.0, max_tokens=8, n=8, ignore_eos=True)
    outputs = generate(llm, ["Hello", "Hello"], params)
    drawn = {tuple(completion.token_ids) for output in outputs for completion in output.outputs}
    assert len(drawn) == 16


def test_pages_of_the_prompt_are_held_once_and_it_is_computed_once(make_engine: MakeEngine) -> None:
    engine = make_engine(num_pages=40, max_num_seqs=16)
    scheduler, before = engine.scheduler, engine.get_metrics()["prefill_tokens"]
    engine.add_request("a", prompt(3 * PAGE + 20), attrs.evolve(PARAMS, n=16, max_tokens=2))
    used = []
    while engine.has_unfinished_requests():
        engine.step()
        scheduler.audit()
        used.append(scheduler.num_pages - 1 - scheduler.num_free_pages)
    assert max(used) == 3 + 16
    assert engine.get_metrics()["prefill_tokens"] - before == 3 * PAGE + 20 + 15


def test_the_prompt_is_computed_once_even_if_the_first_token_ends_each_completion(llm: LLM) -> None:
    before = llm.get_metrics()["prefill_tokens"]
    (output,) = generate(llm, [prompt(30)], attrs.evolve(PARAMS, n=6, max_tokens=1))
    assert [completion.finish_reason for completion in output.outputs] == ["length"] * 6
    assert llm.get_metrics()["prefill_tokens"] - before == 30 + 5


def test_more_completions_than_may_run_at_once(llm: LLM, make_llm: MakeLLM) -> None:
    params = attrs.evolve(PARAMS, n=7)
    (output,) = generate(make_llm(max_num_seqs=3, num_pages=16), [prompt(33)], params)
    assert output.outputs == generate(llm, [prompt(33)], params)[0].outputs


def test_a_stream_brings_the_increments_of_each_completion(llm: LLM) -> None:
    stops = SamplingParams(temperature=1.0, max_tokens=12, seed=3, n=5, stop_token_ids=tuple(range(0, 500, 9)))
    for params in (PARAMS, stops):
        (whole,) = generate(llm, [prompt(10)], params)
        pieces = list(llm.stream(prompt(10), params))
        expected = {c.index: (c.text, c.token_ids, [c.finish_reason]) for c in whole.outputs}
        assert joined(pieces) == expected
    assert len({len(completion.token_ids) for completion in whole.outputs}) > 1, "they end at different steps"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_one_terminal_output_when_all_have_ended(make_engine: MakeEngine, stream: bool) -> None:
    stops = SamplingParams(temperature=1.0, max_tokens=12, seed=3, n=5, stop_token_ids=tuple(range(0, 500, 9)))
    outputs = run(make_engine(), "a", prompt(10), stops, stream=stream)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    reasons = [piece.index for output in outputs for piece in output.outputs if piece.finish_reason is not None]
    assert sorted(reasons) == [0, 1, 2, 3, 4]
    metrics = outputs[-1].metrics
    assert metrics is not None and metrics.finished_time is not None and metrics.last_token_time is not None
    assert metrics.finished_time >= metrics.last_token_time


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_an_abort_ends_every_completion(make_engine: MakeEngine, num_steps: int) -> None:
    engine = make_engine()
    engine.add_request("a", prompt(20), attrs.evolve(PARAMS, max_tokens=50))
    for _ in range(num_steps):
        assert engine.step() == []
    engine.abort_request("a")
    (output,) = engine.step()
    assert output.finished and [completion.finish_reason for completion in output.outputs] == ["abort"] * 4
    engine.step()
    scheduler = engine.scheduler
    assert (scheduler.num_free_pages, scheduler.num_free_slots) == (scheduler.num_pages - 1, scheduler.num_slots - 1)


def failing(llm: LLM, monkeypatch: pytest.MonkeyPatch, seed: int, position: int) -> None:
    """Make the token at a position undrawable for one completion."""
    runner = llm.engine.worker.runner
    sample = runner._sampler.sample

    def fail(logits: Any, batch: Any) -> Any:
        output = sample(logits, batch)
        is_spoilt = (batch.seed == seed) & (batch.position == position)
        return attrs.evolve(output, token_ids=np.where(is_spoilt, np.int32(-1), output.token_ids))

    monkeypatch.setattr(runner._sampler, "sample", fail)


@pytest.mark.parametrize("index", [0, 2])
def test_one_failing_completion_harms_no_other(llm: LLM, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    ids = prompt(20)
    (expected,) = generate(llm, [ids], PARAMS)
    for tokens in (0, 2):
        with monkeypatch.context() as patch:
            failing(llm, patch, PARAMS.sample_seeds(42)[index], len(ids) + tokens)
            (output,) = generate(llm, [ids], PARAMS)
            with pytest.raises(GenerationError, match=f"completion {index}: no token could be drawn"):
                list(llm.stream(ids, PARAMS))
        assert output.error is not None and output.error.startswith(f"completion {index}: no token could be drawn")
        for got, want in zip(output.outputs, expected.outputs, strict=True):
            if got.index == index:
                assert (got.finish_reason, got.token_ids) == ("error", want.token_ids[:tokens])
            else:
                assert got == want


def test_drafts_change_no_completion(make_llm: MakeLLM) -> None:
    """Forced tokens are drafted and accepted, others mostly rejected; the cache is so small that some are preempted."""
    plain = attrs.evolve(PARAMS, n=6, max_tokens=20)
    forced = attrs.evolve(plain, forced_token_ids=tuple(range(30, 42)), max_tokens=40, seed=3)
    off, drafting = make_llm(speculate="off"), make_llm(speculate=3, num_pages=5, max_num_seqs=4)
    batch, params = [prompt(PAGE + 1), prompt(PAGE - 20)], [plain, forced]
    expected = [output.outputs for output in generate(off, batch, params)]
    assert [output.outputs for output in generate(drafting, batch, params)] == expected
    drafting.engine.scheduler.audit()


def test_each_completion_follows_the_grammar_by_itself(llm: LLM) -> None:
    params = SamplingParams(temperature=2.0, n=6, seed=5, max_tokens=30, structured={"regex": "[ab]{5}"})
    (several,) = generate(llm, [prompt(9)], params)
    alone = generate(llm, [prompt(9)] * 6, singles(params))
    assert several.outputs == [at_index(output, index) for index, output in enumerate(alone)]
    assert {completion.finish_reason for completion in several.outputs} == {"stop"}
    texts = {completion.text for completion in several.outputs}
    assert len(texts) > 1 and all(re.fullmatch("[ab]{5}", text) for text in texts)


def test_prompt_logprobs_come_once_and_equal_those_of_one_completion(make_llm: MakeLLM) -> None:
    llm = make_llm(max_num_batched_tokens=16)
    params = attrs.evolve(PARAMS, prompt_logprobs=1)
    (one,) = generate(llm, [prompt(50)], attrs.evolve(params, n=1))
    (several,) = generate(llm, [prompt(50)], params)
    assert several.prompt_logprobs == one.prompt_logprobs
    assert several.prompt_logprobs is not None and len(several.prompt_logprobs) == 50


def test_refused_requests_have_as_many_completions() -> None:
    output = RequestOutput.refused("7", "too long", n=3)
    assert [(c.index, c.finish_reason, c.text) for c in output.outputs] == [(i, "error", "") for i in range(3)]


class Observer:
    """Counts what the hooks are told of each request."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.prefilled: list[str] = []
        self.decoded: list[str] = []

    @hookimpl
    def on_request_added(self, request: Any) -> None:
        self.calls["added"] += 1

    @hookimpl
    def on_request_finished(self, output: Any) -> None:
        self.calls["finished"] += 1
        self.completions = len(output.outputs)

    @hookimpl
    def finalize_seq(self, request_id: str) -> None:
        self.calls["finalized " + request_id] += 1

    @hookimpl
    def pe_prepare_save_kvcache(self, scheduled: Any) -> None:
        self.prefilled += scheduled

    @hookimpl
    def save_kvcache(self, scheduled: Any, finished: Any, states: Any) -> None:
        self.decoded += scheduled

    @hookimpl
    def send_processed_prompts(self, outputs: Any) -> None:
        self.calls["prompts"] += len(outputs)


def test_hooks_see_the_request_and_the_kv_of_its_first_completion() -> None:
    observer = Observer()
    model = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
    with LLM(model, plugins=[observer], num_pages=16, max_num_seqs=8, disable_log_stats=True) as llm:
        llm.engine.add_request("a", prompt(10), PARAMS)
        while llm.engine.has_unfinished_requests():
            llm.engine.step()
    assert observer.calls == {"added": 1, "finished": 1, "finalized a": 1, "prompts": 1}
    assert observer.completions == 4
    assert (observer.prefilled, observer.decoded) == (["a"], ["a"] * 5)
