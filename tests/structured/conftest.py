"""The toy engines, and LLMs over a golden checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deepinfer_core import LLM

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """The module ``toys.py``."""
    spec = spec_from_file_location("structured_toys", Path(__file__).with_name("toys.py"))
    assert spec is not None and spec.loader is not None, "toys.py stands beside this file"
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start() -> Iterator[Callable[..., LLM]]:
    """``start(*plugins, **engine_args)``: an LLM that is closed after the test."""
    made: list[LLM] = []

    def make(*plugins: Any, **engine_args: Any) -> LLM:
        made.append(LLM(MODEL, plugins=plugins, disable_log_stats=True, **engine_args))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
