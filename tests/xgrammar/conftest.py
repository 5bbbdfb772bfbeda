"""Random walks through compiled grammars, byte by byte."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from deepinfer_core.interfaces.grammar import Matcher, Vocabulary
from deepinfer_core.interfaces.structured_output import StructuredOutput
from deepinfer_plugin_xgrammar.engine import XGrammar

#: Every byte is a token.
BYTES = Vocabulary((*[bytes([byte]) for byte in range(256)], b""), {}, (256,))
ENGINE = XGrammar()


def next_bytes(matcher: Matcher) -> list[int]:
    """What may come next."""
    row = np.zeros(BYTES.mask_words, np.int32)
    matcher.fill_mask(row)
    return [
        byte for byte in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() if byte < 256
    ]


def walk(spec: StructuredOutput, rng: random.Random, longest: int = 4000) -> str | None:
    """A random output of the grammar; None if it would not end. Fails where there is no way on."""
    matcher, taken = ENGINE.compile(spec, BYTES).matcher(), bytearray()
    for _ in range(longest):
        ways = next_bytes(matcher)
        if matcher.is_complete and (not ways or rng.random() < 0.5):
            return taken.decode()
        assert ways, f"a dead end after {bytes(taken)!r}"
        taken.append(rng.choice(ways))
        assert matcher.accept(taken[-1])
    return None


def takes(spec: StructuredOutput, text: str) -> bool:
    """Whether a text is a whole output of the grammar."""
    matcher = ENGINE.compile(spec, BYTES).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_complete


@pytest.fixture(scope="session")
def schemas() -> ModuleType:
    """The module ``schemas.py``."""
    spec = spec_from_file_location("random_schemas", Path(__file__).with_name("schemas.py"))
    assert spec is not None and spec.loader is not None, "schemas.py stands beside this file"
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def outputs() -> Callable[..., list[str]]:
    """``outputs(count=20, **spec)``: random outputs of a grammar, those that end."""

    def run(count: int = 20, **spec: Any) -> list[str]:
        made = [walk(StructuredOutput(**spec), random.Random(seed)) for seed in range(count)]
        return [text for text in made if text is not None]

    return run


@pytest.fixture(scope="session")
def accepts() -> Callable[..., bool]:
    """``accepts(text, **spec)``: whether a text is a whole output of the grammar."""
    return lambda text, **spec: takes(StructuredOutput(**spec), text)
