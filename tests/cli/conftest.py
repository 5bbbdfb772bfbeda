"""A fake engine, so that the command line is tested without loading a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import deepinfer_core


def output(prompt: str, text: str, error: str | None = None, **fields: Any) -> SimpleNamespace:
    """A RequestOutput as far as the command line looks at it."""
    completion = SimpleNamespace(
        text=text, token_ids=[7, 8], finish_reason="stop", stop_reason=None, cumulative_logprob=None, logprobs=None
    )
    vars(completion).update(fields)
    return SimpleNamespace(
        prompt=prompt, prompt_token_ids=[1, 2], outputs=[completion] if error is None else [], error=error
    )


class FakeLLM:
    """Answers every prompt with its reverse, a character at a time; refuses empty ones."""

    made: ClassVar[list[FakeLLM]] = []

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.params: Any = None
        self.is_closed = False
        self.made.append(self)

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_closed = True

    def generate(self, prompts: Sequence[str], params: Any, *, use_tqdm: bool) -> list[SimpleNamespace]:
        self.params = params
        return [list(self.stream(prompt, params))[-1] for prompt in prompts]

    def stream(self, prompt: str, params: Any) -> Iterator[SimpleNamespace]:
        self.params = params
        if not prompt:
            yield output(prompt, "", "the prompt is empty")
            return
        for end in range(1, len(prompt) + 1):
            yield output(prompt, prompt[::-1][:end])


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """Puts FakeLLM in the place of LLM; ``llm.made`` lists the instances."""
    FakeLLM.made = []
    monkeypatch.setattr(deepinfer_core, "LLM", FakeLLM, raising=False)
    return FakeLLM
