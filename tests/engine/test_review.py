"""What must not bring an engine down, lose an output or leave one behind: hooks that raise, interrupts, threads,
dropped streams, values beyond what native code holds."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams, hookimpl
from deepinfer_core.errors import ConfigError, RequestError

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
MakeLLM = Callable[..., LLM]


def small(*plugins: object, **engine_args: Any) -> LLM:
    return LLM(MODEL, plugins=plugins, disable_log_stats=True, **{"num_pages": 16, "max_num_seqs": 4, **engine_args})


def tokens(llm: LLM, prompts: list[Any], params: Any = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def is_clean(llm: LLM) -> bool:
    """Nothing is under way, and soon nothing is held: the engine's thread gives back what ended before it rests."""
    engine, scheduler = llm.engine, llm.engine.scheduler
    deadline = time.monotonic() + 30
    while engine.has_unfinished_requests() or scheduler.num_free_slots < scheduler.num_slots - 1:
        assert time.monotonic() < deadline, "something is never given back"
        time.sleep(0.001)
    scheduler.audit()
    return scheduler.num_free_pages == scheduler.num_pages - 1


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", ["close", "forget"])
def test_a_stream_that_nobody_reads_is_aborted(llm: LLM, drop: str) -> None:
    stream = llm.stream("x", SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
    if drop == "close":
        stream.close()  # type: ignore[attr-defined]
    del stream
    gc.collect()
    steps = llm.get_metrics()["steps"]
    tokens(llm, ["y"], ONE)
    assert llm.get_metrics()["steps"] - steps <= 2
    assert is_clean(llm)


def test_only_its_own_thread_may_step_the_engine_of_an_llm(llm: LLM) -> None:
    tokens(llm, ["x"], ONE)
    with pytest.raises(RuntimeError, match="stepped by its thread 'deepinfer-engine'"):
        llm.engine.step()


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("huge", [2**31, 2**63, 10**30])
def test_counts_of_any_size_are_served(llm: LLM, huge: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=huge, stop_token_ids=tuple(range(512)))
    assert [len(ids) for ids in tokens(llm, ["x", "y"], params)] == [1, 1]
    long = SamplingParams(temperature=0, max_tokens=None, min_tokens=huge, top_k=huge, ignore_eos=True)
    stream = llm.stream("x", long)
    assert next(stream).finish_reason is None
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("prompts", [5, None, b"abc", bytearray(b"abc")])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match="prompts must be text, token ids"):
        llm.generate(prompts)


@pytest.mark.parametrize("params", [3, {"temperature": 0}, "greedy", [{"temperature": 0}], [None]])
def test_what_is_no_sampling_params_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="sampling_params must"):
        llm.generate(["x"], params)
    with pytest.raises(RequestError, match="sampling_params must be a SamplingParams"):
        llm.stream("x", params)
    assert is_clean(llm)


# -- hooks that raise, once ------------------------------------------------------------------------

HOOKS = {
    "on_request_added": lambda raise_once, request: raise_once(),
    "post_schedule": lambda raise_once, plan: raise_once(),
    "should_copy_state": lambda raise_once, request_id: raise_once(),
    "save_kvcache": lambda raise_once, scheduled, finished, states: raise_once(),
    "process_output": lambda raise_once, outputs: raise_once(),
    "post_process_model_outputs": lambda raise_once, outputs: raise_once(),
    "finalize_seq": lambda raise_once, request_id: raise_once(),
    "on_error": lambda raise_once, request_id, error: raise_once(),
}


class Raising:
    """Raises the first time its hook is called, and writes down every request's end."""

    def __init__(self) -> None:
        self.is_armed = True
        self.added: list[str] = []
        self.finished: list[str] = []

    def raise_once(self) -> None:
        if self.is_armed:
            self.is_armed = False
            raise OSError("no space")

    @hookimpl
    def on_request_finished(self, output: Any) -> None:
        self.finished.append(output.request_id)


def raising(name: str) -> Raising:
    """A Raising whose hook is ``name``; hooks are matched by their argument names."""
    arguments = HOOKS[name].__code__.co_varnames[1:]
    namespace: dict[str, Any] = {"hookimpl": hookimpl}
    exec(f"@hookimpl\ndef {name}(self, {', '.join(arguments)}):\n    self.raise_once()", namespace)
    plugin: Raising = type("Raising", (Raising,), {name: namespace[name]})()
    return plugin


@pytest.mark.parametrize("name", HOOKS)
def test_after_a_hook_has_raised_the_engine_still_serves_and_forgets_nobody(name: str, llm: LLM) -> None:
    plugin = raising(name)
    hopeless = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, stop_token_ids=tuple(range(512)))
    with small(plugin) as hooked:
        try:
            hooked.generate(["a", "b"], hopeless if name == "on_error" else GREEDY, use_tqdm=False)
            hooked.generate(["c"], GREEDY, use_tqdm=False)  # finalize_seq is called at the next step
        except OSError as error:
            assert error.__notes__ == [f"in hook {name!r} of plugin 'Raising'"]
        assert not plugin.is_armed
        assert tokens(hooked, ["a", "b"]) == tokens(llm, ["a", "b"])
        assert is_clean(hooked)
        assert len(set(plugin.finished)) == len(plugin.finished)


def test_a_stream_gets_its_output_although_a_hook_raised_under_another_caller() -> None:
    with small(raising("process_output")) as hooked:
        stream = hooked.stream("x", ONE)
        with pytest.raises(OSError, match="no space"):
            hooked.generate("y", ONE, use_tqdm=False)
        assert [piece.finish_reason for piece in stream] == ["length"]
        assert is_clean(hooked)


def test_a_failed_step_stores_no_keys_and_hands_over_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Store:
        @hookimpl
        def should_copy_state(self, request_id: str) -> bool:
            calls.append("copy")
            return True

        @hookimpl
        def save_kvcache(self, scheduled: Any, finished: Any, states: Any) -> None:
            calls.append("save")

        @hookimpl
        def pe_save_kvcache(self, scheduled: Any, finished: Any) -> None:
            calls.append("pe_save")

        @hookimpl
        def send_processed_prompts(self, outputs: Any) -> None:
            calls.append("send")

    def broken(prepared: Any) -> Any:
        raise ArithmeticError("device fell over")

    with small(Store()) as hooked:
        monkeypatch.setattr(hooked.engine.worker.runner, "forward", broken)
        assert hooked.generate("x", GREEDY, use_tqdm=False)[0].error is not None
    assert calls == []


def test_a_prompt_is_handed_over_once_even_if_it_is_preempted() -> None:
    sent: list[str] = []

    class Receiver:
        @hookimpl
        def send_processed_prompts(self, outputs: Any) -> None:
            sent.extend(output.request_id for output in outputs)

    with small(Receiver(), num_pages=4) as hooked:
        long = SamplingParams(temperature=0, max_tokens=140, ignore_eos=True)
        outputs = hooked.generate([[7] * 120] * 4, long, use_tqdm=False)
        assert hooked.get_metrics()["num_preemptions"] > 0
    assert sorted(sent) == sorted(output.request_id for output in outputs)


# -- interrupts: see test_interrupts.py -------------------------------------------------------------


# -- threads, sizes --------------------------------------------------------------------------------


def test_threads_share_an_engine(llm: LLM) -> None:
    expected = tokens(llm, ["a", "b", "c"])
    results: dict[int, Any] = {}

    def work(which: int) -> None:
        try:
            if which % 2:
                pieces = list(llm.stream("a", GREEDY))
                results[which] = [[token for piece in pieces for token in piece.token_ids]] == expected[:1]
            else:
                results[which] = tokens(llm, ["a", "b", "c"] * 2) == expected * 2
        except Exception as error:
            results[which] = error

    threads = [threading.Thread(target=work, args=(which,)) for which in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == dict.fromkeys(range(6), True)
    assert is_clean(llm)


def test_the_smallest_engine_gives_the_same_tokens(llm: LLM) -> None:
    prompts = ["but they know", [7] * 40, "x"]
    with small(num_pages=1, max_num_seqs=1, max_num_batched_tokens=1, num_threads=1) as smallest:
        assert tokens(smallest, prompts) == tokens(llm, prompts)
        assert is_clean(smallest)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_pages": 10**9}, "num_pages"),
        ({"num_pages": 10**30}, "num_pages"),
        ({"max_num_batched_tokens": 2**31}, "max_num_batched_tokens"),
    ],
)
def test_sizes_that_do_not_exist_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small(**arguments)


def test_an_engine_does_not_grow_with_the_requests_it_has_served(llm: LLM) -> None:
    tokens(llm, [[n % 500] for n in range(300)], ONE)
    assert is_clean(llm)
    core, thread = llm.engine.core, llm._thread
    held = [core.requests, core._completions, core._news, core._outbox, core._unannounced, core._to_finalize]
    held += [core._inbox, core._flights, core.gate, thread._sinks, thread.listeners]
    assert [len(each) for each in held] == [0] * len(held)
