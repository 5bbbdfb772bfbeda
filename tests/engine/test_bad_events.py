"""Threads, signals, plugins and ends that come at the wrong moment: contained to what they serve."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, EngineArgs, SamplingParams, hookimpl
from deepinfer_core.engine.llm_engine import LLMEngine
from deepinfer_core.sampling import DefaultSampler

DATA = Path(__file__).parents[1] / "data"
MODEL = DATA / "v41-tiny-bf16"
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


def small(**engine_args: Any) -> LLM:
    return LLM(MODEL, disable_log_stats=True, **{"num_pages": 32, "max_num_seqs": 4, **engine_args})


def tokens(llm: LLM, prompts: list[Any], params: Any = SHORT) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


# -- drafters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["observe", "propose"])
def test_a_failing_drafter_is_asked_for_nothing_any_more_and_nobody_notices(
    llm: LLM, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def fail(*_: Any, **__: Any) -> Any:
        calls.append(method)
        raise OSError("the drafter fell over")

    expected = tokens(llm, ["x", "y"])
    with small(speculate=3) as drafting:
        monkeypatch.setattr(drafting.engine.worker.runner.drafter, method, fail)
        assert tokens(drafting, ["x", "y"]) == expected
        assert tokens(drafting, ["x", "y"]) == expected
        assert calls == [method], "it is not asked again, neither to observe nor to propose"
    assert ["speculation is off" in record.message for record in caplog.records] == [True]


# -- samplers --------------------------------------------------------------------------------------


class Wild(DefaultSampler):
    """Draws what no vocabulary has."""

    seam, name = "sampler", "wild"

    def sample(self, logits: Any, batch: Any) -> Any:
        output = super().sample(logits, batch)
        output.token_ids[:] = 10**6
        return output


def test_what_is_derived_from_the_default_sampler_is_checked_too() -> None:
    with small(plugins=[Wild()]) as wild:
        (output,) = wild.generate(["x"], SHORT, use_tqdm=False)
        assert output.outputs[0].token_ids == [] and "Wild" in str(output.error) and "1000000" in str(output.error)


# -- threads ---------------------------------------------------------------------------------------


def test_an_abort_or_a_new_request_waits_for_no_long_run() -> None:
    """The inbox takes no lock: while one thread generates, others get in at the next step."""
    with small(speculate="off") as llm:
        runner = threading.Thread(target=tokens, args=(llm, [[7] * 5], ENDLESS))
        runner.start()
        while not llm.engine.scheduler.num_running:
            time.sleep(0.001)
        before = llm.get_metrics()["steps"]
        assert len(tokens(llm, [[9]], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))[0]) == 1
        llm.abort()
        runner.join(30)
        assert not runner.is_alive()
        assert llm.get_metrics()["steps"] - before < 40


def test_metrics_may_be_asked_for_at_any_time() -> None:
    with small() as llm:
        runner = threading.Thread(target=tokens, args=(llm, [[7] * 5] * 4, SamplingParams(max_tokens=20)))
        runner.start()
        while runner.is_alive():
            assert llm.get_metrics()["steps"] >= 0
            time.sleep(0)  # or the engine's thread gets the interpreter every 5 ms only
        runner.join()


def test_a_signal_handler_may_abort_whatever_the_main_thread_is_doing() -> None:
    with small(speculate="off") as llm:
        old = signal.signal(signal.SIGALRM, lambda *_: llm.abort())
        try:
            for delay in (0.001, 0.003, 0.01, 0.03, 0.1):
                signal.setitimer(signal.ITIMER_REAL, delay, 0.05)
                outputs = llm.generate(["a", "b"], ENDLESS, use_tqdm=False)
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "abort"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        assert len(tokens(llm, ["x"])[0]) == 8
        llm.engine.scheduler.audit()


# -- ends ------------------------------------------------------------------------------------------


def test_closing_frees_weights_caches_and_threads_while_the_object_lives() -> None:
    before = threading.active_count()
    llm = small(overlap="on")
    runner = llm.engine.worker.runner
    freed = [weakref.ref(runner.model), weakref.ref(runner.caches)]
    tokens(llm, ["x"])
    del runner
    llm.close()
    llm.close()
    gc.collect()
    assert [reference() for reference in freed] == [None, None]
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x")


def test_closing_ends_whoever_waits_and_each_once() -> None:
    llm = small(speculate="off")
    done: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: done.extend(llm.generate(["a"], ENDLESS, use_tqdm=False))) for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    while llm.engine.scheduler.num_running < 3:
        time.sleep(0.001)
    llm.close()
    for thread in waiting:
        thread.join(30)
    assert [output.outputs[0].finish_reason for output in done] == ["abort"] * 3


def test_two_engines_side_by_side_and_one_after_the_other(llm: LLM) -> None:
    expected = tokens(llm, ["x", "y"])
    with small(num_threads=1) as first, small(num_threads=2) as second:
        results: dict[int, Any] = {}
        threads = [
            threading.Thread(target=lambda i=i, each=each: results.__setitem__(i, tokens(each, ["x", "y"])))  # type: ignore[misc]
            for i, each in enumerate((first, second, first, second))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == dict.fromkeys(range(4), expected)
    with small() as third:
        assert tokens(third, ["x", "y"]) == expected


AT_EXIT = f"""
import sys, threading, time
from deepinfer_core import LLM, SamplingParams
llm = LLM({str(MODEL)!r}, disable_log_stats=True, overlap=sys.argv[1])
endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
threading.Thread(target=llm.generate, args=(["x"] * 4, endless), kwargs={{"use_tqdm": False}}, daemon=True).start()
while not llm.engine.scheduler.num_running:
    time.sleep(0.001)
time.sleep(0.1)
print("over")
"""


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_the_interpreter_may_end_while_a_daemon_thread_generates(overlap: str) -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", AT_EXIT, overlap], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


# -- traces ----------------------------------------------------------------------------------------


def test_a_trace_shows_host_and_device(tmp_path: Path) -> None:
    with small(trace=tmp_path / "trace.json", overlap="on", speculate="off") as llm:
        tokens(llm, ["x"])
        assert 0 <= llm.get_metrics()["device_wait_share"] <= 1
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    assert set(tracks) == {"host", "device"}
    spans = [(event["name"], event["tid"]) for event in events if event["ph"] == "X" and event["dur"] >= 0]
    assert spans.count(("forward", tracks["device"])) == spans.count(("draw", tracks["device"])) >= 8
    assert ("schedule", tracks["host"]) in spans


# -- hooks -----------------------------------------------------------------------------------------


def test_a_hook_that_always_fails_loses_no_output() -> None:
    """Driven by hand: each step raises, and each output comes with the next one that returns."""

    class Failing:
        is_armed = True

        @hookimpl
        def build_extra_metrics_log(self, metrics: Any) -> Any:
            if self.is_armed:
                raise OSError("no space")
            return {}

    plugin = Failing()
    args = EngineArgs(model=MODEL, plugins=[plugin], num_pages=16, max_num_seqs=4, log_stats_interval=1e-9)
    engine = LLMEngine(args.create_engine_config())
    engine.add_request("a", [1, 2, 3], SHORT, stream=True)
    engine.add_request("b", [4, 5], SHORT)
    for _ in range(20):
        with pytest.raises(OSError, match="no space"):
            engine.step()
        if not (engine.core.requests or engine.core._inbox):
            break
    plugin.is_armed = False
    outputs = engine.step()
    pieces = [token for output in outputs if output.request_id == "a" for token in output.outputs[0].token_ids]
    assert len(pieces) == 8
    assert [output.request_id for output in outputs if output.finished].count("b") == 1
    engine.close()


@pytest.mark.parametrize("where", ["hook", "sink"])
def test_closing_from_the_engines_own_thread_ends_it_behind_the_step(where: str) -> None:
    class Closing:
        @hookimpl
        def process_output(self, outputs: Any) -> None:
            if where == "hook":
                llm.close()

    llm = small(plugins=[Closing()], speculate="off")
    outputs: list[Any] = []

    def sink(output: Any) -> None:
        outputs.append(output)
        if where == "sink":
            llm.close()

    llm._thread.submit([llm.engine.make_request("mine", [1, 2, 3], ENDLESS, stream=True, sink=sink)])
    deadline = time.monotonic() + 30
    while not (outputs and outputs[-1].finished):
        assert time.monotonic() < deadline, "it never ends"
        time.sleep(0.001)
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].outputs[0].finish_reason == "abort"
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x")


def test_whoever_waits_is_told_of_the_end_though_a_hook_fails_in_it() -> None:
    class Failing:
        @hookimpl
        def on_request_finished(self, output: Any) -> None:
            raise OSError("no space")

    llm = small(plugins=[Failing()], speculate="off")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            llm.generate(["a"], ENDLESS, use_tqdm=False)
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not llm.engine.scheduler.num_running:
        time.sleep(0.001)
    with pytest.raises(OSError, match="no space"):
        llm.close()
    waiting.join(30)
    assert not waiting.is_alive() and "closed" in str(raised[0])


def test_a_listener_that_fails_stops_nobody() -> None:
    with small() as llm:

        def gone(failure: BaseException) -> bool:
            raise RuntimeError("Event loop is closed")

        llm._thread.listeners[0] = gone
        llm._thread._announce(OSError("no space"))
        assert len(tokens(llm, ["x"])[0]) == 8


def test_what_is_waited_for_may_fail_in_any_way() -> None:
    class Broken:
        is_ready = True

        def attach(self, request: Any) -> None:
            raise ZeroDivisionError("nobody expected this")

        def describe(self) -> str:
            return "its picture to be read"

    with small() as llm:
        core = llm.engine.core
        core._grammars.begin = lambda spec: Broken()  # type: ignore[assignment,return-value]
        guided = SamplingParams(temperature=0, max_tokens=4, structured={"regex": "[ab]+"})
        failed, fine = llm.generate(["x", "y"], [guided, SHORT], use_tqdm=False)
        assert "its picture to be read failed: ZeroDivisionError: nobody expected this" in str(failed.error)
        assert fine.error is None and len(core.gate) == 0
