"""A plugin in one object: log every request as it comes and goes.

python examples/request_log.py tests/data/v41-tiny-bf16 "Hello" "The lamp is lit."
"""

from __future__ import annotations

import sys
from typing import Any

from deepinfer_core import LLM, SamplingParams, hookimpl


class RequestLog:
    """Prints a line when a request is accepted, and one when it has ended."""

    @hookimpl
    def on_request_added(self, request: Any) -> None:
        print(f"+ {request.request_id}: {len(request.prompt_token_ids)} prompt tokens")

    @hookimpl
    def on_request_finished(self, output: Any) -> None:
        completion = output.outputs[0]
        seconds = output.metrics.total_seconds
        print(f"- {output.request_id}: {len(completion.token_ids)} tokens, {completion.finish_reason}, {seconds:.3f} s")


def main() -> None:
    """Generate for the prompts given on the command line."""
    model, *prompts = sys.argv[1:]
    with LLM(model, plugins=[RequestLog()]) as llm:
        for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16)):
            print(repr(output.outputs[0].text))


if __name__ == "__main__":
    main()
