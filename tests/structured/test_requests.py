"""Requests with a grammar in the engine: waiting, ending, failing, and never in the way of others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.engine.llm_engine import LLMEngine
from deepinfer_core.errors import GenerationError, RequestError
from deepinfer_core.outputs import CompletionOutput, RequestOutput

Start = Callable[..., LLM]
MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
TEXTS = ["red", "green", "greenish", "blue 東"]


def params(*texts: str, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 40, "seed": 1, "structured": {"choice": texts or TEXTS}, **fields})


def free(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "temperature": 0.8, "seed": 42, "ignore_eos": True, **fields})


def run(llm: LLM, *requests: SamplingParams, prompt: Any = "Hello") -> list[RequestOutput]:
    return llm.generate([prompt] * len(requests), list(requests), use_tqdm=False)


def by_hand(*plugins: Any, **fields: Any) -> LLMEngine:
    """An engine that the test itself steps."""
    args = EngineArgs(model=MODEL, plugins=plugins, disable_log_stats=True, **fields)
    return LLMEngine(args.create_engine_config())


def until(engine: LLMEngine, *names: str) -> list[RequestOutput]:
    """Step until these requests have ended; what came of the steps."""
    outputs: list[RequestOutput] = []
    while not {*names} <= {output.request_id for output in outputs}:
        engine.wait(60)
        outputs += engine.step()
    return outputs


def only(outputs: list[RequestOutput]) -> list[CompletionOutput]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0] for output in outputs]


def test_outputs_are_of_the_grammar_and_end_by_it(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine())
    requests = [params(seed=seed, temperature=t) for seed in range(6) for t in (0, 1, 5)]
    for output in only(run(llm, *requests)):
        assert output.text in TEXTS and output.finish_reason == "stop" and output.stop_reason is None
    (short,) = only(run(llm, params("green", max_tokens=1)))
    assert short.finish_reason == "length" and "green".startswith(short.text) and short.text
    enough = len(only(run(llm, params("green")))[0].token_ids)
    (exact,) = only(run(llm, params("green", max_tokens=enough)))
    assert (exact.text, exact.finish_reason) == ("green", "stop")  # whole with its last token


def test_where_a_text_may_go_on_the_model_decides_and_min_tokens_holds(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine())
    eos = llm.engine.eos_token_ids[0]
    pushed = {"logit_bias": {eos: 100}, "temperature": 0}
    (ended,) = only(run(llm, params("green", "greenish", **pushed)))
    assert (ended.text, ended.token_ids[-1], ended.finish_reason) == ("green", eos, "stop")
    late = only(run(llm, params("green", "greenish", min_tokens=len(ended.token_ids), **pushed)))[0]
    assert (late.text, late.finish_reason) == ("greenish", "stop")
    ignoring = only(run(llm, params("green", "greenish", ignore_eos=True, **pushed)))[0]
    assert ignoring.text == "greenish"


def test_each_sample_has_a_matcher_of_its_own(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine())
    (output,) = run(llm, params(n=6, temperature=5))
    assert output.error is None and {sample.text for sample in output.outputs} <= set(TEXTS)
    assert len({sample.text for sample in output.outputs}) > 1
    assert output.outputs[0].token_ids == only(run(llm, params(temperature=5)))[0].token_ids
    (failed,) = run(llm, params("red", n=2, forced_token_ids=llm.get_tokenizer().encode("x", add_special_tokens=False)))
    assert [sample.finish_reason for sample in failed.outputs] == ["error"] * 2


def test_a_stop_string_cuts_as_ever(start: Start, toys: ModuleType) -> None:
    (cut,) = only(run(start(toys.TextsEngine()), params("green", stop=["een"])))
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("gr", "stop", "een")


def test_each_request_equals_itself_alone_beside_others_and_preempted(start: Start, toys: ModuleType) -> None:
    """Fault 5 with grammars among the neighbours, and preemption of them."""
    long = ["ab" * n + "c" for n in range(30, 34)]
    requests = [
        free(),
        params(seed=7),
        params(*long, seed=3),
        free(seed=None),
        params(temperature=0),
        free(n=1, seed=9),
    ]
    prompt = [11] * 120
    roomy = start(toys.TextsEngine())
    alone = [run(roomy, each, prompt=prompt)[0].outputs[0].token_ids for each in requests]
    tight = start(toys.TextsEngine(), num_pages=3, max_num_seqs=4)
    for llm in (roomy, tight):
        together = [output.outputs[0].token_ids for output in run(llm, *requests, prompt=prompt)]
        for place, each in enumerate(requests):
            if each.seed is not None or each.is_greedy:
                assert together[place] == alone[place], place
        llm.engine.scheduler.audit()
    assert tight.get_metrics()["num_preemptions"] > 0


def test_others_go_on_while_one_waits_for_its_grammar(start: Start, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    llm = start(engine)
    done: list[RequestOutput] = []
    waiting = threading.Thread(target=lambda: done.extend(run(llm, params("wait"))))
    waiting.start()
    while not engine.compiled:
        assert waiting.is_alive()
    (held,) = llm.engine.core.ids
    assert "waiting for its choice to be compiled" in llm.engine.explain(held)
    with pytest.raises(RequestError, match=f"'{held}': a request with this id is still alive"):
        llm.engine.add_request(held, "Hello", free())
    assert [output.finish_reason for output in only(run(llm, free(), params("red")))] == ["length", "stop"]
    assert llm.engine.has_unfinished_requests() and not done
    engine.gate.set()
    waiting.join(60)
    assert [output.outputs[0].text for output in done] == ["wait"]


def test_what_is_compiled_together_starts_in_the_order_of_arrival(toys: ModuleType) -> None:
    grammars = toys.TextsEngine()
    names = ["wait b", "wait a", "wait c"]
    with closing(by_hand(grammars, max_num_seqs=1)) as engine:
        for name in names:
            engine.add_request(name, "Hello", params(name))
        assert engine.step() == [] and len(engine.core.gate) == 3
        grammars.gate.set()
        while len(list(engine.core.gate.ready())) < 3:
            engine.wait(0.01)
        outputs = until(engine, *names)
        assert [output.request_id for output in outputs] == names
        assert [output.outputs[0].text for output in outputs] == names
        assert not engine.has_unfinished_requests()


def test_what_is_compiled_late_keeps_its_place_and_others_go_on_meanwhile(toys: ModuleType) -> None:
    """One slot: what came before it is let go first, and what came after it goes on only while it waits."""
    grammars = toys.TextsEngine()
    with closing(by_hand(grammars, max_num_seqs=1)) as engine:
        for name, wanted in (
            ("first", free(max_tokens=2)),
            ("late", params("wait")),
            ("meanwhile", free(max_tokens=3)),
            ("after", free(max_tokens=2)),
            ("last", params("red")),
        ):
            engine.add_request(name, "Hello", wanted)
        order = [output.request_id for output in until(engine, "meanwhile")]
        assert order == ["first", "meanwhile"] and "to be compiled" in engine.explain("late")
        grammars.gate.set()
        while "late" not in [request.request_id for request, _ in engine.core.gate.ready()]:
            engine.wait(0.01)
        order += [output.request_id for output in until(engine, "last")]
        assert order == ["first", "meanwhile", "late", "after", "last"]
        assert not engine.has_unfinished_requests()


def test_a_request_is_aborted_while_its_grammar_is_compiled(start: Start, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    llm = start(engine)
    done: list[RequestOutput] = []
    waiting = threading.Thread(target=lambda: done.extend(run(llm, params("wait"))))
    waiting.start()
    while not engine.compiled:
        assert waiting.is_alive()
    llm.abort()
    waiting.join(60)
    assert [output.outputs[0].finish_reason for output in done] == ["abort"] and done[0].error is None
    assert not llm.engine.has_unfinished_requests()
    engine.gate.set()
    assert only(run(llm, params("wait")))[0].text == "wait"


def test_closing_ends_who_waits(start: Start, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    llm = start(engine)
    llm.engine.add_request("held", "Hello", params("wait"))
    llm.close()
    assert not llm.engine.has_unfinished_requests() or [o.outputs[0].finish_reason for o in llm.engine.step()] == [
        "abort"
    ]
    engine.gate.set()


def test_a_grammar_that_takes_too_long_ends_its_request(start: Start, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    llm = start(engine, grammar_timeout=0.05)
    late, fine = run(llm, params("wait"), params("red"))
    assert "longer than grammar_timeout (0.05 s)" in str(late.error) and late.outputs[0].finish_reason == "error"
    assert fine.outputs[0].text == "red"
    engine.gate.set()


def raising(*args: Any) -> Any:
    raise OSError("disk on fire")


def test_a_hostile_engine_harms_its_own_requests_only(start: Start, toys: ModuleType) -> None:
    calls = {"count": 0}

    def sometimes(self: Any, row: Any) -> None:
        calls["count"] += 1
        if calls["count"] > 2:
            raise OSError("disk on fire")
        toys.TextsMatcher.fill_mask(self, row)

    faults = {
        "refuses": toys.raising(ValueError("no")),
        "fails": toys.raising(OSError("disk on fire")),
        "garbage": lambda *_: 3,
        "dead": toys.broken(fill_mask=lambda self, row: None),
        "broken": toys.broken(fill_mask=raising),
        "later": toys.broken(fill_mask=sometimes),
        "denies": toys.broken(accept=lambda self, token: False),
        "never": toys.broken(is_complete=property(raising)),
        "matcher": toys.broken(__init__=raising),
    }
    llm = start(toys.TextsEngine(faults))
    plain = only(run(llm, free(), params("red")))
    outputs = run(llm, free(), *[params(name) for name in faults], params("red"))
    good = only([outputs[0], outputs[-1]])
    assert [each.token_ids for each in good] == [each.token_ids for each in plain]
    reasons = {
        "refuses": "its choice is refused: no",
        "dead": "no token could be drawn: every token is banned, not allowed, excluded by the grammar",
        "garbage": "compile must return a Grammar",
        "denies": "was drawn, which the grammar excludes",
    }
    for name, output in zip(faults, outputs[1:-1], strict=True):
        assert output.outputs[0].finish_reason == "error", name
        assert reasons.get(name, "disk on fire") in str(output.error), name
    assert len(run(llm, params("red"))) == 1
    llm.engine.scheduler.audit()


def test_a_grammar_and_other_masks_that_leave_nothing_end_that_request(start: Start, toys: ModuleType) -> None:
    """Fault 33."""
    llm = start(toys.TextsEngine())
    free_ids = llm.get_tokenizer().encode("xyz", add_special_tokens=False)
    requests = [params("red"), free(), params("red", allowed_token_ids=free_ids), free(seed=3), params("green")]
    plain = [run(llm, each)[0] for each in requests]
    together = run(llm, *requests)
    for place, (one, other) in enumerate(zip(plain, together, strict=True)):
        assert (one.error is not None) == (place == 2)
        assert one.error == other.error and one.outputs[0].token_ids == other.outputs[0].token_ids
    assert "no token could be drawn" in str(plain[2].error)


def test_processed_logprobs_know_the_grammar(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine())
    request = params("red", logprobs=5, logprobs_mode="processed", temperature=1)
    output = only(run(llm, request))[0]
    assert output.logprobs is not None
    spellings = {text for position in output.logprobs for entry in position.values() for text in [entry.decoded_token]}
    assert all(text and text in "red" for text in spellings)


def test_forced_tokens_must_fit(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine())
    encode = llm.get_tokenizer().encode
    fitting, other = encode("gre", add_special_tokens=False), encode("gz", add_special_tokens=False)
    good, bad = run(llm, params(forced_token_ids=fitting), params(forced_token_ids=other))
    assert good.outputs[0].text in ("green", "greenish")
    assert f"forced_token_ids must fit the grammar, which excludes token {other[1]} at place 1" in str(bad.error)
    whole = [*encode("red", add_special_tokens=False), *llm.engine.eos_token_ids[:1]]
    assert only(run(llm, params("red", "redder", forced_token_ids=whole)))[0].finish_reason == "stop"


def test_a_stream_brings_the_same_text_and_the_errors(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine({"fails": toys.raising(ValueError("no"))}))
    whole = only(run(llm, params()))[0]
    assert "".join(piece.text for piece in llm.stream("Hello", params())) == whole.text
    with pytest.raises(GenerationError, match="its choice is refused: no"):
        list(llm.stream("Hello", params("fails")))


def test_what_can_be_refused_at_once_is(start: Start, toys: ModuleType) -> None:
    llm = start(toys.TextsEngine(), grammar_max_size="1KiB")
    unsupported, large, long = llm.generate(
        ["a", "a", [5] * 10**5],
        [SamplingParams(structured={"regex": "a"}), params("x" * 2000), params()],
        use_tqdm=False,
    )
    assert unsupported.error == "grammar engine 'texts' does not support regex (it does: choice)"
    assert "choice must be at most 1024 bytes long (grammar_max_size), got" in str(large.error)
    assert "max_model_len" in str(long.error)
    assert not llm.engine.has_unfinished_requests()


def test_a_step_without_grammars_calls_nothing(start: Start, toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer_core.engine import grammar_admission
    from deepinfer_core.structured import guide

    for owner, name in (
        (grammar_admission.GrammarCompiler, "__init__"),
        (guide.Guide, "__init__"),
        (guide.GuideContext, "__init__"),
    ):
        monkeypatch.setattr(owner, name, raising)
    engine = toys.TextsEngine()
    assert only(run(start(engine), free(), free(seed=3)))
    assert engine.compiled == []
