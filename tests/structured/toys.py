"""Grammar engines for tests: one that is right and simple, and ways to be wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.grammar import Vocabulary
from deepinfer_core.interfaces.structured_output import StructuredOutput


class TextsMatcher:
    """Accepts tokens while some text begins with what there is; quadratic, and plainly right."""

    def __init__(self, texts: list[bytes], vocabulary: Vocabulary) -> None:
        self.texts, self.vocabulary = texts, vocabulary
        self.pieces: list[bytes] = []

    @property
    def is_complete(self) -> bool:
        return b"".join(self.pieces) in self.texts

    def _leads_on(self, token: int) -> bool:
        piece = self.vocabulary.token_bytes[token]
        return bool(piece) and any(text.startswith(b"".join(self.pieces) + piece) for text in self.texts)

    def accept(self, token_id: int) -> bool:
        if not self._leads_on(token_id):
            return False
        self.pieces.append(self.vocabulary.token_bytes[token_id])
        return True

    def rollback(self, count: int) -> None:
        assert count <= len(self.pieces)
        del self.pieces[len(self.pieces) - count :]

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        assert not row.any()
        bits = row.view(np.uint32)
        for token in range(len(self.vocabulary)):
            if self._leads_on(token):
                bits[token // 32] |= np.uint32(1 << token % 32)


class Texts:
    def __init__(self, texts: list[bytes], vocabulary: Vocabulary, matcher: type = TextsMatcher) -> None:
        self.texts, self.vocabulary, self.make = texts, vocabulary, matcher

    def matcher(self) -> Any:
        return self.make(self.texts, self.vocabulary)


class TextsEngine:
    """Choices. ``faults`` are by the first choice's text: what to do instead of compiling it.

    A choice beginning with ``wait`` is compiled once :attr:`gate` is set.
    """

    seam = "grammar"
    name = "texts"
    kinds = ("choice",)

    def __init__(self, faults: dict[str, Any] | None = None) -> None:
        self.faults = faults or {}
        self.gate = threading.Event()
        self.compiled: list[str] = []

    def compile(self, spec: StructuredOutput, vocabulary: Vocabulary) -> Any:
        assert spec.choice is not None
        first = spec.choice[0]
        self.compiled.append(first)
        if first in self.faults:
            return self.faults[first](spec, vocabulary)
        if first.startswith("wait"):
            assert self.gate.wait(60)
        return Texts([text.encode() for text in spec.choice], vocabulary)


def raising(error: BaseException) -> Any:
    def fail(*args: Any) -> Any:
        raise error

    return fail


def broken(**members: Any) -> Any:
    """Compiles to a grammar whose matchers have these members instead of the right ones."""
    made = type("Broken", (TextsMatcher,), members)
    return lambda spec, vocabulary: Texts([text.encode() for text in spec.choice], vocabulary, made)
