"""A step may be broken off at any line: nobody's end is lost, none comes twice, and the engine goes on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import deepinfer_core
from deepinfer_core import SamplingParams
from deepinfer_core.engine.llm_engine import LLMEngine
from deepinfer_core.outputs import RequestOutput

MakeEngine = Callable[..., LLMEngine]
ROOT = str(Path(deepinfer_core.__file__).parent)
#: What a step runs through, plugins apart: those are contained by other means.
STAGES = ("engine", "worker", "sampling", "structured", "speculation", "outputs.py", "interfaces")
SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
REQUESTS: dict[str, tuple[list[int], SamplingParams, bool]] = {
    "plain": ([7, 8, 9], SHORT, False),
    "streamed": ([5] * 4, SHORT, True),
    "several": ([3] * 5, SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=2, logprobs=1), False),
    "stopped": ([9, 9], SamplingParams(temperature=0, max_tokens=4, stop=["§"], prompt_logprobs=0), False),
    "guided": ([11, 4], SamplingParams(temperature=0, max_tokens=4, structured={"regex": "[ab]{1,3}"}), True),
    "aborted": ([2] * 6, SamplingParams(temperature=0, max_tokens=50, ignore_eos=True), True),
}


class Injector:
    """Raises before one line of a step is run, the first time that it is reached; or writes down all lines."""

    def __init__(self, target: tuple[str, int] | None = None, error: BaseException | None = None) -> None:
        self.lines: dict[tuple[str, int], None] = {}
        self._target, self._error = target, error

    def __enter__(self) -> Injector:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(ROOT) or not name[len(ROOT) + 1 :].startswith(STAGES):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            if self._error is None:
                self.lines[place] = None
            elif place == self._target:
                error, self._error = self._error, None
                self._target = None
                raise error
        return self._line


def run(engine: LLMEngine, injector: Injector) -> tuple[list[RequestOutput], list[BaseException]]:
    """All requests to their ends, steps under the injector."""
    for request_id, (prompt, params, stream) in REQUESTS.items():
        engine.add_request(request_id, prompt, params, stream=stream)
    outputs: list[RequestOutput] = []
    failures: list[BaseException] = []
    for count in range(200):
        if not engine.has_unfinished_requests():
            return outputs, failures
        engine.wait(1.0)
        if count == 3:
            engine.abort_request("aborted")
        with injector:
            try:
                outputs += engine.step()
            except BaseException as failure:
                failures.append(failure)
        engine.scheduler.audit()
    raise AssertionError("the requests never end")


def check(engine: LLMEngine, outputs: list[RequestOutput]) -> None:
    """One terminal output per request, whole streams, nothing held."""
    terminal = Counter(output.request_id for output in outputs if output.finished)
    assert terminal == dict.fromkeys(REQUESTS, 1), terminal
    ends = Counter((output.request_id, piece.index) for output in outputs for piece in output.outputs if piece.finished)
    assert set(ends.values()) == {1}
    engine.core.release()
    scheduler = engine.scheduler
    scheduler.audit()
    assert (scheduler.num_free_pages, scheduler.num_free_slots) == (scheduler.num_pages - 1, scheduler.num_slots - 1)
    assert not (engine.core.requests or engine.core._completions or engine.core._news or engine.core.gate)


def texts(outputs: list[RequestOutput]) -> dict[str, Any]:
    """What each request got, joined."""
    joined: dict[str, Any] = {}
    for output in outputs:
        for piece in output.outputs:
            ids, reasons = joined.setdefault(f"{output.request_id} {piece.index}", ([], []))
            ids.extend(piece.token_ids)
            reasons.extend([piece.finish_reason] if piece.finished else [])
    return joined


@pytest.fixture(scope="module")
def places(make_engine: MakeEngine) -> Iterator[Callable[[str], list[tuple[str, int]]]]:
    """The lines that the scenario runs through, by overlap."""
    found: dict[str, list[tuple[str, int]]] = {}

    def lines(overlap: str) -> list[tuple[str, int]]:
        if overlap not in found:
            engine = make_engine(overlap=overlap, speculate="off" if overlap == "on" else "auto")
            run(engine, Injector())  # what is made once is made
            injector = Injector()
            outputs, failures = run(engine, injector)
            assert not failures
            check(engine, outputs)
            found[overlap] = list(injector.lines)
        return found[overlap]

    yield lines


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, ArithmeticError, SystemExit])
def test_a_step_broken_off_at_any_line_loses_nobody(
    make_engine: MakeEngine, places: Any, kind: type[BaseException], overlap: str
) -> None:
    engine = make_engine(overlap=overlap, speculate="off" if overlap == "on" else "auto")
    expected = texts(run(engine, Injector())[0])
    lines = places(overlap)
    assert len(lines) > 300, "the scenario goes through all stages"
    # Interrupts at every line, the others spread over both ways to run: SystemExit takes the interrupts' way.
    chosen = lines[overlap == "on" :: {KeyboardInterrupt: 2, ArithmeticError: 3, SystemExit: 12}[kind]]
    num_raised = 0
    for place in chosen:
        try:
            outputs, failures = run(engine, Injector(place, kind("injected")))
            num_raised += bool(failures)
            check(engine, outputs)
            got = texts(outputs)
            for name, (ids, reasons) in got.items():
                assert reasons in (expected[name][1], ["error"], ["abort"]), (name, reasons)
                if reasons == expected[name][1] and name != "aborted 0":
                    assert ids == expected[name][0], name
            if kind is not ArithmeticError:
                assert not [output.error for output in outputs if output.error]
        except AssertionError as problem:
            raise AssertionError(f"after {kind.__name__} at {place[0][len(ROOT) :]}:{place[1]}: {problem}") from problem
    assert num_raised > len(chosen) / 2
    assert texts(run(engine, Injector())[0]) == expected
