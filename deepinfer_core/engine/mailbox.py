"""Where a caller waits for outputs that the engine's thread delivers."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from deepinfer_core.engine.engine_thread import EngineThread
    from deepinfer_core.engine.request import Request
    from deepinfer_core.outputs import RequestOutput

#: Requests that are handed to the engine at once while a caller makes many: each hand-over wakes a thread.
_BATCH = 32


class Mailbox:
    """One caller's, who is told of steps that fail while it is open as a context manager.

    is_lasting: told of all of them, rather than only while it waits for an output.
    """

    def __init__(self, thread: EngineThread, *, is_lasting: bool) -> None:
        self._thread = thread
        self._is_lasting = is_lasting
        self._arrived: queue.SimpleQueue[RequestOutput | BaseException] = queue.SimpleQueue()
        self._posted: list[Request] = []
        self._is_waiting = False
        self.put = self._arrived.put
        """The sink of requests whose outputs come here."""

    def post(self, request: Request) -> None:
        """Send a request to the engine, with others; :meth:`flush` sends those that are left."""
        self._posted.append(request)
        if len(self._posted) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Send the requests that have been posted. Raises RuntimeError if the engine is closed."""
        posted, self._posted = self._posted, []
        if posted:
            self._thread.submit(posted)

    def get(self) -> RequestOutput:
        """The next output, when it is there. Raises what a step raises meanwhile."""
        self._is_waiting = True
        try:
            found = self._arrived.get()
        finally:
            self._is_waiting = False
        if isinstance(found, BaseException):
            raise found
        return found

    def hear(self, failure: BaseException) -> bool:
        """A step has failed: tell the caller; whether there is somebody to tell."""
        is_heard = self._is_lasting or self._is_waiting
        if is_heard:
            self._arrived.put(failure)
        return is_heard

    def __enter__(self) -> Self:
        self._thread.listeners[id(self)] = self.hear
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.listeners.pop(id(self), None)
