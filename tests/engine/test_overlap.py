"""Planning ahead of the device changes nothing that anybody can see, whatever happens in the step that overlaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.engine.llm_engine import LLMEngine
from deepinfer_core.outputs import RequestOutput

MakeLLM = Callable[..., LLM]
MakeEngine = Callable[..., LLMEngine]
#: Few slots, few rows and few pages: somebody always waits for what another is about to give back.
TIGHT: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_pages": 6}


def results(outputs: list[RequestOutput]) -> dict[str, list[Any]]:
    """By completion: what a request got, joined."""
    joined: dict[str, list[Any]] = {}
    for output in outputs:
        for piece in output.outputs:
            got = joined.setdefault(f"{output.request_id}/{piece.index}", [[], "", [], None, None])
            got[0] += piece.token_ids
            got[1] += piece.text
            got[2] += piece.logprobs or []
            got[3], got[4] = piece.finish_reason, piece.stop_reason
    return joined


def drive(engine: LLMEngine, requests: dict[str, tuple[list[int], SamplingParams, int]], aborts: dict[int, str]) -> Any:
    """Requests arrive at their steps, some are aborted; every output, with an audit after each step."""
    outputs: list[RequestOutput] = []
    steps = 0
    while steps < 4000:
        for name, (prompt, params, arrival) in requests.items():
            if arrival == steps:
                engine.add_request(name, prompt, params, stream=len(prompt) % 2 == 0)
        if steps in aborts:
            engine.abort_request(aborts[steps])
        engine.wait(1.0 if engine.has_unfinished_requests() else 0.0)
        outputs += engine.step()
        engine.scheduler.audit()
        steps += 1
        if not engine.has_unfinished_requests() and steps > max(arrival for _, _, arrival in requests.values()):
            break
    engine.core.release()
    scheduler = engine.scheduler
    assert (scheduler.num_free_pages, scheduler.num_free_slots) == (scheduler.num_pages - 1, scheduler.num_slots - 1)
    ended = [output.request_id for output in outputs if output.finished]
    assert sorted(ended) == sorted(requests), "one terminal output each"
    return results(outputs)


def test_fault_11_sixty_prompts_through_four_slots_are_what_each_is_alone(make_llm: MakeLLM) -> None:
    random = np.random.default_rng(11)
    prompts = [random.integers(3, 512, random.integers(1, 201)).tolist() for _ in range(60)]
    params = [
        SamplingParams(
            temperature=[0.0, 0.8][i % 2], seed=i, max_tokens=int(random.integers(1, 41)), ignore_eos=i % 3 == 0
        )
        for i in range(60)
    ]
    aborted = set(random.choice(60, 6, replace=False).tolist())
    alone = [
        make_llm().generate([prompt], each, use_tqdm=False)[0].outputs[0]
        for prompt, each in zip(prompts, params, strict=True)
    ]
    ahead = make_llm(overlap="on", speculate="off", max_num_seqs=4, max_num_batched_tokens=32)
    streams = [ahead.stream(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    for place, (stream, expected) in enumerate(zip(streams, alone, strict=True)):
        if place in aborted:
            next(stream)
            stream.close()  # type: ignore[attr-defined]
            continue
        pieces = list(stream)
        assert [token for piece in pieces for token in piece.token_ids] == expected.token_ids, place
        assert "".join(piece.text for piece in pieces) == expected.text
        assert pieces[-1].finish_reason == expected.finish_reason
    ahead.engine.scheduler.audit()


KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.3, "seed": 3, "logprobs": 2},
    {"temperature": 0.9, "seed": 5, "frequency_penalty": 1.1, "repetition_penalty": 1.2, "min_tokens": 3},
    {"temperature": 1.0, "seed": 8, "stop_token_ids": tuple(range(0, 512, 5))},
    {"temperature": 1.0, "seed": 9, "stop": ("e", "th", "\ufffd")},
    {"temperature": 1.5, "seed": 2, "structured": {"regex": "[a-f]{2,6}"}},
    {"temperature": 1.0, "seed": 4, "n": 3},
    {"temperature": 1.0, "seed": 6, "prompt_logprobs": 1},
]


@st.composite
def traces(draw: st.DrawFn) -> Any:
    """Requests that arrive over some steps and end by EOS, length, stop string, stop id, grammar or abort."""
    requests = {}
    for i in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(KINDS))
        length = draw(st.one_of(st.integers(1, 8), st.integers(100, 140)))
        params = SamplingParams(**kind, max_tokens=draw(st.integers(1, 12)) + 3 * ("min_tokens" in kind))
        prompt = [(7 * place + i) % 500 + 3 for place in range(length)]
        requests[f"r{i}"] = prompt, params, draw(st.integers(0, 6))
    aborts = draw(st.dictionaries(st.integers(0, 14), st.sampled_from([*requests]), max_size=2))
    return requests, aborts


PLAIN = {"speculate": "off"}


@pytest.mark.parametrize(
    "limits", [{"max_num_seqs": 8, **PLAIN}, {**TIGHT, **PLAIN}, TIGHT], ids=["roomy", "tight", "drafts"]
)
def test_overlap_on_equals_off(make_engine: MakeEngine, limits: dict[str, Any]) -> None:
    """With a drafter steps don't overlap, for drafts need the newest tokens; the device's thread is at work all the
    same.
    """
    off, on = make_engine(overlap="off", **limits), make_engine(overlap="on", **limits)

    @settings(max_examples=40)
    @given(traces())
    def compare(trace: Any) -> None:
        requests, aborts = trace
        plain, ahead = drive(off, requests, aborts), drive(on, requests, aborts)
        assert plain.keys() == ahead.keys()
        for name, expected in plain.items():
            got = ahead[name]
            if "abort" in (expected[3], got[3]):  # it is a step later that the abort is seen, or earlier
                shorter = min(len(expected[0]), len(got[0]))
                assert got[0][:shorter] == expected[0][:shorter]
            else:
                assert got == expected, name

    compare()


def test_what_ended_wastes_its_row_and_nothing_else(make_engine: MakeEngine) -> None:
    """A sequence that stops is in one more plan, which nobody sees; steps and tokens of others are as without it."""
    engine = make_engine(overlap="on", speculate="off", max_num_seqs=8)
    free = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    whole = drive(engine, {"a": ([5, 6, 7], free, 0)}, {})["a/0"][0]
    stops = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop_token_ids=(whole[3],))
    rows: list[int] = []
    schedule = engine.core.worker.launch

    def launch(plan: Any) -> Any:
        rows.append(plan.num_rows)
        assert engine.scheduler.num_outstanding <= 2
        return schedule(plan)

    engine.core.worker.launch = launch  # type: ignore[method-assign]
    try:
        got = drive(engine, {"a": ([5, 6, 7], stops, 0), "b": ([9] * 3, free, 0)}, {})
    finally:
        del engine.core.worker.launch
    assert got["a/0"][0] == whole[: whole.index(whole[3]) + 1] and got["a/0"][3] == "stop"
    assert sum(rows) == 6 + (len(got["a/0"][0]) - 1) + 8 + 1, "one row too many: the stopped one's"


def test_flush_leaves_nothing_under_way(make_engine: MakeEngine) -> None:
    engine = make_engine(overlap="on", speculate="off", max_num_seqs=8)
    engine.add_request("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    engine.step()
    assert engine.scheduler.num_outstanding == 1
    engine.flush()
    assert engine.scheduler.num_outstanding == 0
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert len(outputs[0].outputs[0].token_ids) == 6


def test_a_failing_step_ends_its_requests_and_the_step_behind_it_is_computed_again(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(overlap="on", speculate="off", max_num_seqs=8)
    runner, calls = engine.worker.runner, []
    late = [4] * 9, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), 1
    expected = drive(engine, {"late": late}, {})["late/0"]
    forward = runner.forward

    def fail_second(prepared: Any) -> Any:
        calls.append(len(prepared.batch))
        if len(calls) == 2:
            raise ArithmeticError("device fell over")
        return forward(prepared)

    monkeypatch.setattr(runner, "forward", fail_second)
    early = [5, 6, 7], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), 0
    got = drive(engine, {"early": early, "late": late}, {})
    assert got["early/0"][3] == "error" and got["late/0"] == expected
