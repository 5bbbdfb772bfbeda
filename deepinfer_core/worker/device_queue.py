"""Where a step's work is done: at once, or on a thread that keeps its order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """What becomes of one piece of work."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._is_done = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work. What an interrupt raises goes on to the caller as well."""
        assert self._work is not None, "work is done once"
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._work = None
            self._is_done.set()

    def wait(self) -> T:
        """The result, when it is there. Raises what the work raised."""
        self._is_done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class DeviceQueue(Protocol):
    """Takes work and does it, one piece after the other."""

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """Do this after everything submitted before. Returns at once if the queue has a thread."""
        ...

    def drain(self) -> None:
        """Return when everything submitted is done, however it went."""
        ...

    def close(self) -> None:
        """Finish what was submitted and end. A second call does nothing."""
        ...


class InlineQueue:
    """Does everything at once, on the caller's thread."""

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """See :class:`DeviceQueue`."""
        pending = Pending(work)
        pending.run()
        return pending

    def drain(self) -> None:
        """Nothing is ever left."""

    def close(self) -> None:
        """Nothing is held."""


class ThreadQueue:
    """Does everything on one thread of its own, which begins with the first piece.

    The thread is a daemon, so that a device that hangs does not keep the process from ending; whoever made the queue
    closes it before the interpreter goes.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Pending[object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Pending[object] | None = None

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """See :class:`DeviceQueue`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        pending = Pending(work)
        self._last = pending  # type: ignore[assignment]  # only its end is looked at
        self._work.put(pending)  # type: ignore[arg-type]
        return pending

    def drain(self) -> None:
        """See :class:`DeviceQueue`."""
        if self._last is not None:
            self.submit(_nothing).wait()

    def close(self) -> None:
        """See :class:`DeviceQueue`."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (pending := self._work.get()) is not None:
            try:
                pending.run()
            except BaseException:  # whoever waits for it gets it; the thread must live
                continue


def _nothing() -> None:
    return None
