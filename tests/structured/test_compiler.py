"""Compiling on threads: once per content, within a time limit, whatever the engine does."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from deepinfer_core.config import GrammarConfig
from deepinfer_core.interfaces.grammar import Vocabulary
from deepinfer_core.interfaces.structured_output import StructuredOutput
from deepinfer_core.structured.compiler import Compilation, GrammarCompiler

VOCABULARY = Vocabulary((b"a", b"b"), {}, ())


def choice(*texts: str) -> StructuredOutput:
    return StructuredOutput(choice=texts)


class Ringing(GrammarCompiler):
    """One that sets an event whenever a compilation is done."""

    def __init__(self, engine: Any, config: GrammarConfig, clock: Callable[[], float]) -> None:
        self.rung = threading.Event()
        super().__init__(engine, "toy", lambda: VOCABULARY, config, clock, notify=self.rung.set)


def settle(compiler: Ringing, *compilations: Compilation) -> None:
    """Wait for each of them, and look only when the compiler rings."""
    for each in compilations:
        while not each.is_done:
            assert compiler.rung.wait(60), "never compiled, or nobody was told"
            compiler.rung.clear()


@pytest.fixture
def make(toys: ModuleType) -> Any:
    made: list[Ringing] = []

    def build(engine: Any, clock: Callable[[], float] = time.monotonic, **limits: Any) -> Ringing:
        made.append(Ringing(engine, GrammarConfig(**limits), clock))
        return made[-1]

    yield build
    for compiler in made:
        compiler.close()


def test_equal_contents_are_compiled_once_under_way_or_done(make: Any, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    compiler = make(engine)
    first, again = compiler.submit(choice("wait")), compiler.submit(choice("wait"))
    assert first is again and not first.is_done
    engine.gate.set()
    settle(compiler, first)
    assert compiler.submit(choice("wait")) is first and engine.compiled == ["wait"]
    assert first.grammar is not None and first.error is None


def test_the_least_recently_used_grammar_goes_first(make: Any, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    compiler = make(engine, cache_size=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        settle(compiler, compiler.submit(choice(text)))
    assert engine.compiled == ["a", "b", "c", "b"]


def test_a_slow_one_holds_up_no_other(make: Any, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    compiler = make(engine)
    slow, quick = compiler.submit(choice("wait")), [compiler.submit(choice(text)) for text in "abc"]
    settle(compiler, *quick)
    assert not slow.is_done
    engine.gate.set()
    settle(compiler, slow)


@pytest.mark.parametrize("kept", [False, True])
def test_what_an_engine_raises_or_returns_is_the_contents_error(make: Any, toys: ModuleType, kept: bool) -> None:
    faults = {
        "refuses": (
            toys.raising(ValueError("too hard; make it easier")),
            "its choice is refused: too hard; make it easier",
        ),
        "fails": (toys.raising(KeyError("x")), "grammar engine 'toy' failed in compile: KeyError: 'x'"),
        "exits": (toys.raising(SystemExit(3)), "grammar engine 'toy' failed in compile: SystemExit: 3"),
        "lies": (lambda *_: "a grammar", "compile must return a Grammar, got 'a grammar'"),
        "nothing": (lambda *_: None, "compile must return a Grammar, got None"),
    }
    engine = toys.TextsEngine({name: fault for name, (fault, _) in faults.items()})
    compiler = make(engine, cache_size=9 if kept else 0)
    for name, (_, message) in faults.items():
        for _ in range(2):
            compilation = compiler.submit(choice(name))
            settle(compiler, compilation)
            assert compilation.grammar is None and message in str(compilation.error)
    assert engine.compiled.count("refuses") == (1 if kept else 2)  # a refusal is final,
    assert engine.compiled.count("fails") == 2  # a failure need not be
    settle(compiler, fine := compiler.submit(choice("fine")))
    assert fine.grammar is not None


def test_time_counts_from_the_start_of_compiling(make: Any, toys: ModuleType) -> None:
    now = [0.0]
    engine = toys.TextsEngine()
    compiler = make(engine, clock=lambda: now[0], timeout_seconds=5)
    held = [compiler.submit(choice(f"wait {i}")) for i in range(3)]  # more than there are threads
    while sum(each.started is not None for each in held) < 2:
        time.sleep(0.001)
    now[0] = 5.5
    compiler.check()
    overdue = [each for each in held if each.is_overdue]
    assert len(overdue) == 2
    assert all("longer than grammar_timeout (5 s)" in str(each.error) for each in overdue)
    last = next(each for each in held if not each.is_overdue)
    while last.started is None:  # a new thread took it up, and its time begins now
        time.sleep(0.001)
    compiler.check()
    assert last.started == 5.5 and not last.is_overdue
    assert compiler.submit(choice("wait 0")).is_overdue  # still under way: not begun a second time
    engine.gate.set()
    settle(compiler, *held)
    assert compiler.submit(choice("wait 0")).grammar is not None  # late, but there
    assert len(engine.compiled) == 3


def test_when_too_many_hang_the_others_are_told_so(make: Any, toys: ModuleType) -> None:
    now = [0.0]
    engine = toys.TextsEngine()
    compiler = make(engine, clock=lambda: now[0], timeout_seconds=1)
    hung = []
    for i in range(8):
        hung.append(compiler.submit(choice(f"wait {i}")))
        while hung[-1].started is None:
            time.sleep(0.001)
        now[0] += 2
        compiler.check()
        assert hung[-1].is_overdue
    refused = compiler.submit(choice("a"))
    compiler.check()
    assert refused.is_done and "8 grammars are still being compiled long after" in str(refused.error)
    engine.gate.set()
    settle(compiler, *hung)
    settle(compiler, fine := compiler.submit(choice("a")))
    assert fine.grammar is not None


def test_closing_ends_idle_threads(make: Any, toys: ModuleType) -> None:
    before = set(threading.enumerate())
    compiler = make(toys.TextsEngine())
    settle(compiler, compiler.submit(choice("a")), compiler.submit(choice("b")))
    compiler.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


HANGING = """
import time
from deepinfer_core.config import GrammarConfig
from deepinfer_core.interfaces.structured_output import StructuredOutput
from deepinfer_core.structured.compiler import GrammarCompiler

class Engine:
    kinds = ("choice",)
    def compile(self, spec, vocabulary):
        time.sleep(600)

compiler = GrammarCompiler(Engine(), "toy", lambda: None, GrammarConfig(timeout_seconds=0.01))
compilation = compiler.submit(StructuredOutput(choice=["a"]))
while not compilation.is_overdue:
    time.sleep(0.01)
    compiler.check()
compiler.close()
print("over")
"""


def test_a_compilation_that_never_ends_does_not_keep_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "over\n")


def test_whoever_waits_is_told(make: Any, toys: ModuleType) -> None:
    engine = toys.TextsEngine()
    compiler = make(engine)
    waited = compiler.submit(choice("wait"))
    assert not compiler.rung.wait(0.05)
    engine.gate.set()
    assert compiler.rung.wait(60) and waited.is_done
