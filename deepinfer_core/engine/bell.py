"""How whoever has nothing to do is told that there is something."""

from __future__ import annotations

import queue
from collections.abc import Callable


class Bell:
    """Any thread rings, and signal handlers too; one waits. Nothing here holds a lock that they could find taken."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_awaited = False

    def ring(self) -> None:
        """Wake whoever waits. Costs next to nothing if nobody does."""
        if self._is_awaited:
            self._rings.put(None)

    def wait(self, is_needless: Callable[[], bool], timeout: float | None = None) -> None:
        """Return when it rings, after ``timeout`` seconds, or at once if ``is_needless()``.

        What happened before the call may not have rung: ``is_needless`` is asked after it is made known that somebody
        waits, so that nothing falls between.
        """
        self._is_awaited = True
        try:
            while not self._rings.empty():  # what it rang for is done
                self._rings.get_nowait()
            if not is_needless():
                self._rings.get(timeout=timeout)
        except queue.Empty:
            return
        finally:
            self._is_awaited = False
