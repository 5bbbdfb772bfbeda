"""Runs an engine's steps on a thread, and delivers what comes of them to whoever waits."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer_core.engine.llm_engine import LLMEngine
    from deepinfer_core.engine.request import Request
    from deepinfer_core.outputs import RequestOutput

logger = logging.getLogger(__name__)

#: Seconds after which a step that had nothing to do is repeated: nobody may spin.
_REST = 0.001

_CLOSED = "this engine is closed; make a new one"

Listener = Callable[[BaseException], bool]


class EngineThread:
    """One thread that owns the engine's core: it alone steps it, from the first request to :meth:`close`.

    Callers put requests in and get outputs through ``Request.sink``, which is called on this thread and must not
    wait. What a step raises goes to the listeners.

    The thread is a daemon, so that a step that hangs does not keep the process from ending; before the interpreter
    goes, the engine is closed.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        """Over starting and ending."""
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._ends_itself = False
        self._sinks: dict[str, Request] = {}
        """Requests whose last output is not delivered, by id."""
        self.listeners: dict[int, Listener] = {}
        """By an id of their own, what is told of a failed step; each says whether somebody heard it."""
        self._at_exit = _close_at_exit(self)

    def submit(self, requests: list[Request]) -> None:
        """Queue requests made with a sink. Raises RequestError for an id that a live one has, RuntimeError once closing
        has begun.
        """
        if self._is_closing:
            raise RuntimeError(_CLOSED)
        for request in requests:
            # Before it is submitted, for its first output may come at once. Of two with one id, submit() refuses one.
            self._sinks.setdefault(request.request_id, request)
        self._engine.submit(requests)
        if self._is_closing:  # meanwhile: whoever ends the others may have missed these
            raise RuntimeError(_CLOSED)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._is_closing:
                thread = threading.Thread(target=self._run, name="deepinfer-engine", daemon=True)
                self._thread = self._engine.owner = thread
                thread.start()

    def _run(self) -> None:
        engine = self._engine
        while not self._is_closing:
            try:
                if not engine.core.has_work:
                    engine.core.release()
                engine.wait()
                if self._is_closing or not engine.core.has_work:
                    continue
                outputs = engine.step()
            except BaseException as failure:  # whoever waits gets it; the thread must live
                self._announce(failure)
                continue
            for output in outputs:
                self.deliver(output)
            if not outputs and not engine.scheduler.num_running:
                time.sleep(_REST)  # what waits has no room, and what would make some is not here yet
        if self._ends_itself:
            self._finish()

    def deliver(self, output: RequestOutput) -> None:
        """Give an output to its request's sink. A sink that raises belongs to nobody any more."""
        request = self._sinks.get(output.request_id)
        if request is None or request.sink is None:
            return
        if output.finished:
            del self._sinks[output.request_id]
        try:
            request.sink(output)
        except Exception:
            logger.exception("the outputs of request %r go to nobody; it is aborted", output.request_id)
            self._engine.abort_request(output.request_id)

    def _announce(self, failure: BaseException) -> None:
        if not self._tell_listeners(failure):
            logger.error("a step failed and nobody waits", exc_info=failure)

    def _tell_listeners(self, failure: BaseException) -> bool:
        """Whether anybody heard. One that raises, as where its event loop is gone, does not."""
        is_heard = False
        for listener in list(self.listeners.values()):
            try:
                is_heard |= listener(failure)
            except Exception:
                logger.exception("somebody cannot be told of a failed step")
        return is_heard

    def close(self) -> None:
        """End everybody with ``abort``, free what the engine holds, and return when the thread has ended. A second
        call does nothing. Called on the thread itself, from within a sink or a hook, it only begins that.
        """
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            thread = self._thread
        atexit.unregister(self._at_exit)
        if thread is threading.current_thread():
            self._ends_itself = True
            return
        self._engine.bell.ring()
        if thread is not None:
            thread.join()
        self._finish()

    def _finish(self) -> None:
        """Nobody steps any more: end everybody. Whatever a hook raises meanwhile, those who wait are told."""
        try:
            for output in self._engine.close():
                self.deliver(output)
        finally:
            self._tell_listeners(RuntimeError(_CLOSED))


def _close_at_exit(thread: EngineThread) -> Callable[[], None]:
    """Registered without keeping the engine alive."""
    reference = weakref.ref(thread)

    def close() -> None:
        found = reference()
        if found is not None:
            found.close()

    return atexit.register(close)
