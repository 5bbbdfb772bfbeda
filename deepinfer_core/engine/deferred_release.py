"""Releases that must wait for the next step: until then someone may still read what they free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Release = Callable[[], object]


class DeferredRelease:
    """Collects releases during a step; :meth:`flush` runs them at the start of the next one. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: list[Release] = []

    def __len__(self) -> int:
        return len(self._pending)

    def defer(self, release: Release) -> None:
        """Call ``release`` at the next flush; a bound method or closure keeps alive what it needs until then."""
        self._pending.append(release)

    def flush(self) -> None:
        """Run everything collected, in order, once each. What a release defers waits for the next flush.

        All run even if some raise; then the first exception is raised, or an ExceptionGroup of several. An
        interrupt is raised at once and leaves those behind it for the next flush.
        """
        pending, self._pending = deque(self._pending), []
        count = len(pending)
        failures: list[Exception] = []
        try:
            while pending:
                release = pending.popleft()
                try:
                    release()
                except Exception as failure:
                    failures.append(failure)
        finally:
            self._pending[:0] = pending
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {count} deferred releases failed", failures)
