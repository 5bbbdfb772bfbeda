"""The hooks that write the log."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from deepinfer_core.hookspecs import AcceptedRequest
    from deepinfer_core.outputs import RequestOutput


@attrs.frozen(kw_only=True)
class Config:
    """``path``: the file that lines are appended to; empty: standard error."""

    path: str = attrs.field(default="", metadata={"help": "file to append to; empty: standard error"})


class RequestLogger:
    """A line when a request is accepted, when something fails, and when a request has ended; never what it says."""

    def __init__(self, config: Config | None = None) -> None:
        self._path = (config or Config()).path
        self._write("started")  # a path that cannot be written to stops start-up, not the first request

    @hookimpl
    def on_request_added(self, request: AcceptedRequest) -> None:
        """The request and its size."""
        self._write("added", request_id=request.request_id, prompt_tokens=len(request.prompt_token_ids))

    @hookimpl
    def on_request_finished(self, output: RequestOutput) -> None:
        """How it ended and how long it took, in seconds."""
        metrics = output.metrics
        assert metrics is not None, "an accepted request has metrics"
        self._write(
            "finished",
            request_id=output.request_id,
            output_tokens=[len(completion.token_ids) for completion in output.outputs],
            finish_reasons=[completion.finish_reason for completion in output.outputs],
            queue_seconds=metrics.queue_seconds,
            time_to_first_token=metrics.time_to_first_token,
            total_seconds=metrics.total_seconds,
            preemptions=metrics.num_preemptions,
        )

    @hookimpl
    def on_error(self, request_id: str | None, error: BaseException) -> None:
        """What failed: a request, or, without an id, a step."""
        self._write("failed", request_id=request_id, error=f"{type(error).__name__}: {error}")

    def _write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"time": time.time(), "event": event, **fields})
        if not self._path:
            print(line, file=sys.stderr, flush=True)
            return
        with open(self._path, "a", encoding="utf-8") as file:  # each time anew: the file may be moved away meanwhile
            file.write(line + "\n")
