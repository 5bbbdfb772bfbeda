"""A fake engine, so that the command line is tested without loading a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

import deepinfer_core
from deepinfer_core.errors import RequestError
from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput


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

    def generate(self, prompts: Sequence[str], params: Any, *, use_tqdm: bool) -> list[RequestOutput]:
        self.params = params
        return [self._output(str(i), prompt) for i, prompt in enumerate(prompts)]

    def stream(self, prompt: str, params: Any) -> Iterator[CompletionOutput]:
        self.params = params
        if not prompt:
            raise RequestError("the prompt is empty")
        return (CompletionOutput(0, character, [7]) for character in reversed(prompt))

    def _output(self, request_id: str, prompt: str) -> RequestOutput:
        if not prompt:
            return RequestOutput.refused(request_id, "the prompt is empty", prompt=prompt)
        logprobs = [{7: Logprob(-0.5, 1, "x"), 8: Logprob(-1.5, 2, "y")}]
        completions = [
            CompletionOutput(index, prompt[::-1], [7, 8], logprobs=logprobs, finish_reason="stop")
            for index in range(self.params.n)
        ]
        return RequestOutput(request_id, prompt, [1, 2], completions, finished=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """Puts FakeLLM in the place of LLM; ``llm.made`` lists the instances."""
    FakeLLM.made = []
    monkeypatch.setattr(deepinfer_core, "LLM", FakeLLM, raising=False)
    return FakeLLM
