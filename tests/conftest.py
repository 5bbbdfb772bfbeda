"""Settings of the whole suite; golden cases, loaded once, and a summary of how close the engine came to each."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

# Times belong to the machine, not to the code: a busy one must not fail a property.
settings.register_profile("deepinfer", deadline=None)
settings.load_profile("deepinfer")

# A suite started in the background ignores Ctrl-C, and so would the programs whose Ctrl-C it tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What the user's own configuration file says must not decide a test, in this process or in a child.
os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir(), f"deepinfer-tests-{os.getpid()}"))

_LINES = pytest.StashKey[list[str]]()


def _load(name: str) -> ModuleType:
    spec = spec_from_file_location(f"helper_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None, f"{name}.py stands beside this file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden() -> ModuleType:
    """The helper module ``golden.py``."""
    return _load("golden")


@pytest.fixture(scope="session")
def llama_checkpoints() -> ModuleType:
    """The helper module ``llama_checkpoints.py``."""
    return _load("llama_checkpoints")


@pytest.fixture(scope="session")
def golden_case(golden: ModuleType) -> Callable[..., Any]:
    """``golden_case(name, family)``: the case, loaded once per session."""
    cases: dict[tuple[str, str], Any] = {}

    def load(name: str, family: str = "cpu") -> Any:
        if (name, family) not in cases:
            cases[name, family] = golden.load_case(name, family)
        return cases[name, family]

    return load


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Adds a line to the summary printed after the tests."""
    lines: list[str] = request.config.stash.setdefault(_LINES, [])
    yield lines.append


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the golden comparisons' largest errors."""
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("golden comparisons")
        for line in lines:
            terminalreporter.line(line)
