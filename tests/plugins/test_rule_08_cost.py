"""Rule 8, no cost when running: everything is bound before the first step. Times are in benchmarks/plugin_layer.py."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pluggy
import pytest

from deepinfer_core import LLM, SamplingParams, hookimpl
from deepinfer_core.hookspecs import HOOK_NAMES
from deepinfer_core.plugins.hooks import bind_hooks
from deepinfer_core.sampling import DefaultSampler

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


class Observer:
    """Implements the hooks of every step."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    @hookimpl
    def post_schedule(self, plan: Any) -> None:
        self.calls["post_schedule"] += 1

    @hookimpl
    def post_process_model_outputs(self, outputs: Any) -> None:
        self.calls["post_process_model_outputs"] += 1


class Processor:
    """Leaves the logits as they are, and counts."""

    seam, name = "logits_processor", "counting"

    def __init__(self) -> None:
        self.rows: list[int] = []

    def check_parameters(self, parameters: Any) -> None: ...

    def process(self, logits: Any, rows: Any) -> Any:
        self.rows.append(len(rows))
        return logits


class Sampler:
    """The core's, counted."""

    seam, name = "sampler", "counting"

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.sampler = DefaultSampler()

    def sample(self, logits: Any, batch: Any) -> Any:
        self.rows.append(len(batch))
        return self.sampler.sample(logits, batch)


def llm(*plugins: object) -> LLM:
    return LLM(MODEL, plugins=plugins, num_pages=16, max_num_seqs=4, disable_log_stats=True)


@pytest.fixture
def pluggy_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """After it is called, the list of our hooks that pass through pluggy (pytest's own pass there too)."""
    calls: list[str] = []
    call = pluggy.HookCaller.__call__

    def counted(self: pluggy.HookCaller, **arguments: object) -> object:
        if self.name in HOOK_NAMES:
            calls.append(self.name)
        return call(self, **arguments)

    def start() -> list[str]:
        monkeypatch.setattr(pluggy.HookCaller, "__call__", counted)
        return calls

    return start


@pytest.mark.parametrize("plugins", [[], [Observer()]], ids=["none", "one"])
def test_a_step_makes_no_pluggy_call(pluggy_calls: Any, plugins: list[object]) -> None:
    with llm(*plugins) as engine:
        calls = pluggy_calls()
        engine.generate(["Hello"], PARAMS, use_tqdm=False)
    assert calls == []


def test_a_bound_hook_is_a_plain_call_and_an_unbound_one_is_none(pluggy_calls: Any) -> None:
    observer = Observer()
    hooks = bind_hooks([("a", observer)])
    calls = pluggy_calls()
    assert hooks.post_schedule is not None
    hooks.post_schedule("plan")
    assert (observer.calls, calls) == ({"post_schedule": 1}, [])
    assert [name for name in HOOK_NAMES if getattr(hooks, name) is not None] == list(hooks.implemented())
    assert hooks.implemented() == ("post_schedule", "post_process_model_outputs")


def test_a_step_without_plugins_runs_no_code_of_the_plugin_layer() -> None:
    """Counted as calls into its modules while an engine generates."""
    with llm() as engine, counted_calls("deepinfer_core.plugins") as calls:
        engine.generate(["Hello", "Hi"], PARAMS, use_tqdm=False)
    assert calls == {}


def test_the_count_sees_what_the_engines_thread_does() -> None:
    with llm() as engine, counted_calls("deepinfer_core.engine") as calls:
        engine.generate(["Hello"], PARAMS, use_tqdm=False)
    assert calls["deepinfer_core.engine.engine_core.EngineCore.step"] >= 3


def test_each_seam_is_called_at_most_once_a_step_with_all_its_rows() -> None:
    observer, processor, sampler = Observer(), Processor(), Sampler()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, extra={"counting": 1}) for n in (2, 4)]
    with llm(observer, processor, sampler) as engine:
        engine.generate([[7] * 3, [8] * 3, [9] * 3], [*params, PARAMS], use_tqdm=False)
    steps = len(sampler.rows)
    assert sampler.rows[0] == 3 and processor.rows[0] == 2  # whoever does not name the processor is not shown to it
    assert sum(sampler.rows) == 2 + 4 + 4 and sum(processor.rows) == 2 + 4
    assert set(observer.calls.values()) == {steps}


class counted_calls:
    """Counts calls of Python functions, by name, in modules of one package."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Counter[str]:
        threading.setprofile(self._count)  # of threads that begin from now on: the engine's
        sys.setprofile(self._count)
        return self.calls

    def __exit__(self, *error: object) -> None:
        threading.setprofile(None)  # type: ignore[arg-type]  # as its documentation says
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if event == "call" and (module == self._package or module.startswith(f"{self._package}.")):
            self.calls[f"{module}.{frame.f_code.co_qualname}"] += 1
