"""Ask a backend whether it can run here, in a child process: plugin code is not selected yet, so it must
not run in this one. A probe returns None when the backend can run, else a sentence saying why not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import reduce

TIMEOUT_SECONDS = 20.0
_CHILD = "import sys; from deepinfer_core.plugins.probe import main; main(sys.argv[1])"


def run_probes(paths: Sequence[str], timeout: float = TIMEOUT_SECONDS) -> Mapping[str, str | None]:
    """Run each ``"module:function"`` in a child, all at once. Returns per path None (can run) or why not."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = {
        path: subprocess.Popen(
            [sys.executable, "-c", _CHILD, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for path in paths
    }
    return {path: _answer(child, timeout) for path, child in children.items()}


def _answer(child: subprocess.Popen[bytes], timeout: float) -> str | None:
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"the probe did not answer within {timeout:g} s"
    try:
        answer = json.loads(out)
        return None if answer["reason"] is None else str(answer["reason"])
    except (ValueError, KeyError, TypeError):
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        return f"the probe died with exit code {child.returncode}" + "".join(f": {line}" for line in last)


def load_object(path: str) -> object:
    """Import ``"package.module:Object.attribute"``."""
    module, _, attribute = path.partition(":")
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def main(path: str) -> None:
    """The child: run one probe and write its answer, alone, to the real standard output."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            probe = load_object(path)
            reason = probe() if callable(probe) else f"{path} is not callable"
            if reason is not None and not isinstance(reason, str):
                reason = f"the probe must return None or the reason why not, got {reason!r}"
        except Exception as error:
            reason = f"the probe raised {type(error).__name__}: {error}"
        json.dump({"reason": reason}, answer)
