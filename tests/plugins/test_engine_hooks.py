"""Hooks and the resolved table on a real engine."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams, hookimpl
from deepinfer_core.errors import PluginError
from deepinfer_core.hookspecs import HOOK_NAMES, HookSpecs

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
PARAMS = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


class Observer:
    """Writes down every call of a hook that an engine for both phases makes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    @hookimpl
    def on_request_added(self, request: Any) -> None:
        self.calls.append(("added", request.request_id))

    @hookimpl
    def post_schedule(self, plan: Any) -> None:
        self.calls.append(("scheduled", plan.num_seqs))

    @hookimpl
    def process_output(self, outputs: Any) -> None:
        self.calls.append(("output", [output.request_id for output in outputs]))

    @hookimpl
    def on_request_finished(self, output: Any) -> None:
        self.calls.append(("finished", (output.request_id, output.outputs[0].token_ids)))

    @hookimpl
    def finalize_seq(self, request_id: str) -> None:
        self.calls.append(("finalized", request_id))

    @hookimpl
    def post_process_model_outputs(self, outputs: Any) -> None:
        self.calls.append(("processed", len(outputs)))

    @hookimpl
    def on_error(self, request_id: str | None, error: BaseException) -> None:
        self.calls.append(("error", request_id))

    def count(self) -> Counter[str]:
        return Counter(name for name, _ in self.calls)


def llm(*plugins: object) -> LLM:
    return LLM(MODEL, plugins=plugins, num_pages=16, max_num_seqs=4, disable_log_stats=True)


def test_an_observer_sees_each_request_through_its_life() -> None:
    observer = Observer()
    with llm(observer) as engine:
        outputs = engine.generate(["Hello", "", "a b c"], PARAMS, use_tqdm=False)
        rows = [row for row in engine.plugins if row.distribution == "Python object"]
    assert [(row.name, row.seam, row.state) for row in rows] == [("Observer", "hooks", "active")]
    served = [output for output in outputs if output.error is None]
    ids = [output.request_id for output in served]
    assert len(ids) == 2
    assert [value for name, value in observer.calls if name == "added"] == ids
    finished = sorted(value for name, value in observer.calls if name == "finished")
    assert finished == [(output.request_id, output.outputs[0].token_ids) for output in served]
    assert sorted(value for name, value in observer.calls if name == "finalized") == ids
    counts = observer.count()
    assert counts["scheduled"] == counts["processed"] >= 3
    assert counts["error"] == 0


def test_an_observer_changes_no_token() -> None:
    with llm(Observer()) as observed, llm() as plain:
        first = observed.generate(["Hello"], PARAMS, use_tqdm=False)
        second = plain.generate(["Hello"], PARAMS, use_tqdm=False)
    assert first[0].outputs[0].token_ids == second[0].outputs[0].token_ids


def test_an_exception_in_a_hook_names_the_plugin() -> None:
    class Failing:
        @hookimpl
        def post_schedule(self, plan: Any) -> None:
            raise OSError("no space")

    with llm(Failing()) as engine, pytest.raises(OSError, match="no space") as caught:
        engine.generate(["Hello"], PARAMS, use_tqdm=False)
    assert caught.value.__notes__ == ["in hook 'post_schedule' of plugin 'Failing'"]


def test_a_wrong_plugin_stops_start_up() -> None:
    with pytest.raises(PluginError, match="unknown plugin 'deepsek'; did you mean 'deepseek'"):
        llm("deepsek")


class KvStore:
    """Uses every hook that moves keys, values and state."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.states: list[Any] = []

    @hookimpl
    def init_pd_split(self, engine: Any) -> None:
        self.engine = engine
        self.calls.append(("init", None))

    @hookimpl
    def should_copy_state(self, request_id: str) -> bool:
        return request_id == "0"

    @hookimpl
    def save_kvcache(self, scheduled: Any, finished: Any, states: Any) -> None:
        self.calls.append(("save", (list(scheduled), list(finished), sorted(states))))
        self.states += states.values()

    @hookimpl
    def pe_prepare_save_kvcache(self, scheduled: Any) -> None:
        self.calls.append(("prepare", list(scheduled)))

    @hookimpl
    def pe_save_kvcache(self, scheduled: Any, finished: Any) -> None:
        self.calls.append(("pe_save", (list(scheduled), list(finished))))

    @hookimpl
    def send_processed_prompts(self, outputs: Any) -> None:
        self.calls.append(("prompts", [(o.request_id, len(o.outputs[0].token_ids)) for o in outputs]))


def test_hooks_that_move_kv_see_both_phases_and_state_copies() -> None:
    store = KvStore()
    with llm(store) as engine:
        long, short = [7] * 5, [9] * 3
        outputs = engine.generate([long, short], [PARAMS, SamplingParams(temperature=0, max_tokens=1)])
        caches, longest = engine.engine.worker.runner.caches, engine.engine.worker.max_model_len
        slots = {buffer.name: buffer.shape for buffer in caches.layout.slots}
    with llm() as plain:
        expected = plain.generate([long, short], [PARAMS, SamplingParams(temperature=0, max_tokens=1)])
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected]
    assert store.calls == [
        ("init", None),
        ("prepare", ["0", "1"]),
        ("pe_save", (["0", "1"], ["1"])),
        ("prompts", [("0", 1), ("1", 1)]),
        ("save", (["0"], [], ["0"])),
        ("save", (["0"], ["0"], ["0"])),
    ]
    view = store.engine
    assert (view.layout, view.max_model_len) == (caches.layout, longest)
    assert {**view.caches.pages, **view.caches.slots} == caches.tensors
    assert set(view.caches.slots) == set(slots)
    assert {len(tensor) for tensor in view.caches.pages.values()} == {view.num_pages}
    assert {len(tensor) for tensor in view.caches.slots.values()} == {view.num_slots}
    assert [{name: tuple(copy.shape) for name, copy in state.items()} for state in store.states] == [slots] * 2
    windows = [state["layers.0.window"] for state in store.states]
    assert not bool((windows[0] == windows[1]).all())


def test_every_hook_is_called_by_an_engine(caplog: pytest.LogCaptureFixture) -> None:
    """A hook without a caller would be a promise nobody keeps; one with other arguments, a wrong promise."""
    called: dict[str, tuple[str, ...]] = {}

    def recorder(name: str) -> Any:
        names = tuple(inspect.signature(getattr(HookSpecs, name)).parameters)[1:]
        namespace: dict[str, Any] = {"called": called}
        answer = "{'of_mine': 1.5}" if name == "build_extra_metrics_log" else "None"
        body = f"called[{name!r}] = {names!r}; return {answer}"
        exec(f"def {name}(self, {', '.join(names)}): {body}", namespace)
        return hookimpl(namespace[name])

    spoiler = {
        "seam": "logits_processor",
        "name": "spoiler",
        "check_parameters": lambda self, parameters: None,
        "process": lambda self, logits, rows: logits * float("nan"),
    }
    everything = type("Everything", (), {**spoiler, **{name: recorder(name) for name in HOOK_NAMES}})()
    spoilt = SamplingParams(extra={"spoiler": 1})
    caplog.set_level(logging.INFO, "deepinfer_core.engine.stats_logger")
    with LLM(MODEL, plugins=[everything], num_pages=16, max_num_seqs=4, log_stats_interval=1e-9) as engine:
        outputs = engine.generate(["Hello", "Hello"], [PARAMS, spoilt], use_tqdm=False)
    assert [output.error is None for output in outputs] == [True, False]
    assert sorted(called) == sorted(HOOK_NAMES)
    assert any("of_mine 1.5" in record.getMessage() for record in caplog.records)
