"""Small engines over the golden checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM
from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.engine.llm_engine import LLMEngine

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def make_llm() -> Iterator[Callable[..., LLM]]:
    """``make_llm(checkpoint, **engine_args)``: an LLM, shared by all tests that ask for the same one."""
    made: dict[Any, LLM] = {}

    def make(checkpoint: str = "v41-tiny-bf16", **engine_args: Any) -> LLM:
        key = (checkpoint, *sorted(engine_args.items()))
        if key not in made:
            made[key] = LLM(DATA / checkpoint, disable_log_stats=True, **engine_args)
        return made[key]

    yield make
    for llm in made.values():
        llm.close()


@pytest.fixture(scope="session")
def llm(make_llm: Callable[..., LLM]) -> LLM:
    """The default engine."""
    return make_llm()


@pytest.fixture(scope="session")
def make_engine() -> Iterator[Callable[..., LLMEngine]]:
    """``make_engine(checkpoint, **engine_args)``: an engine to be stepped by hand, shared as above."""
    made: dict[Any, LLMEngine] = {}

    def make(checkpoint: str = "v41-tiny-bf16", **engine_args: Any) -> LLMEngine:
        key = (checkpoint, *sorted(engine_args.items()))
        if key not in made:
            args = EngineArgs(model=DATA / checkpoint, disable_log_stats=True, **engine_args)
            made[key] = LLMEngine(args.create_engine_config())
        return made[key]

    yield make
    for engine in made.values():
        engine.close()
