"""Run plugin code in child processes, for questions about plugins that are not selected: they may exit, hang or
crash, and must not do so in this process.

The question most often asked is a backend's probe: a function that returns None when the backend can run here,
else a sentence saying why not.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from typing import Any, Final, cast

from attrs import frozen

TIMEOUT_SECONDS: Final = 20.0
#: Children that run at once.
_PARALLEL: Final = 4
_CHILD: Final = "from deepinfer_core.plugins.probe import main; main()"


@frozen
class Answer:
    """What a child came to: ``value``, plain data, or the ``failure`` that kept it from answering."""

    value: Any = None
    failure: str | None = None


def run_probes(paths: Sequence[str], timeout: float = TIMEOUT_SECONDS) -> Mapping[str, str | None]:
    """Run each probe, ``"module:function"``, in a child of its own. Returns per path None (can run) or why not."""
    answers = run_children("deepinfer_core.plugins.probe:ask_probe", [[path] for path in paths], timeout, "the probe")
    return {path: answer.failure or answer.value for path, answer in zip(paths, answers, strict=True)}


def run_children(
    function: str, calls: Sequence[Sequence[Any]], timeout: float = TIMEOUT_SECONDS, what: str = "it"
) -> list[Answer]:
    """Call ``"module:function"`` once per list of arguments, each time in a fresh child process.

    Arguments and results are plain data (JSON). timeout: seconds for each child, after which it is killed with
    all it started. what: who is asked, for messages.
    """
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(lambda arguments: _run_child(function, arguments, timeout, what), calls))


def _run_child(function: str, arguments: Sequence[Any], timeout: float, what: str) -> Answer:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Files and not pipes: whatever it leaves running may keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps([function, list(arguments)])],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            return Answer(failure=f"{what} did not answer within {timeout:g} s")
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        out.seek(0)
        err.seek(0)
        try:
            return Answer(json.loads(out.read())["value"])
        except (ValueError, KeyError, TypeError):
            last = err.read().decode(errors="replace").strip().splitlines()[-1:]
            return Answer(failure=f"{what} died with exit code {child.returncode}" + "".join(f": {s}" for s in last))


def ask_probe(path: str) -> str | None:
    """In the child: a probe's answer."""
    try:
        reason = cast("Callable[[], object]", load_object(path))()
    except Exception as error:
        return f"the probe raised {type(error).__name__}: {error}"
    if reason is None or isinstance(reason, str):
        return reason
    return f"the probe must return None or the reason why not, got {reason!r}"


def load_object(path: str) -> object:
    """Import ``"package.module:Object.attribute"``."""
    module, _, attribute = path.partition(":")
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def main() -> None:
    """The child: call what the argument names and write its result, alone, to the real standard output."""
    path, arguments = json.loads(sys.argv[1])
    function = cast("Callable[..., object]", load_object(path))
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump({"value": function(*arguments)}, answer)
