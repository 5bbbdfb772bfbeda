"""The admission gate: requests that wait for something outside the step, such as a grammar that is being compiled."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from deepinfer_core.errors import RequestError

if TYPE_CHECKING:
    from deepinfer_core.engine.request import Request

logger = logging.getLogger(__name__)


class Awaited(Protocol):
    """What a request waits for. Whoever makes it sees to it that it ends: its own time limit is its own."""

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to wait for any more: it is there, failed, or has taken too long. Costs little."""
        ...

    def attach(self, request: Request) -> None:
        """Give the request what it waited for. Raises RequestError, with the reason, if it will never be there."""
        ...

    def describe(self) -> str:
        """What is waited for, and for how long at most, as the rest of a sentence."""
        ...


class AdmissionGate:
    """Requests that the scheduler holds, each with what it waits for. Nobody else waits for them."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Request, Awaited]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, awaited: Awaited) -> None:
        """Take in a request."""
        self._waiting[request.request_id] = request, awaited

    def discard(self, request_id: str) -> None:
        """A request waits no more; unknown ones are ignored."""
        self._waiting.pop(request_id, None)

    @property
    def has_ready(self) -> bool:
        """Whether somebody need not wait any more."""
        return any(awaited.is_ready for _, awaited in list(self._waiting.values()))

    def ready(self) -> Iterator[tuple[Request, str | None]]:
        """Requests that need not wait any more, each with why it will never be served, or None. They stay until
        :meth:`discard`.
        """
        for request, awaited in list(self._waiting.values()):
            if not awaited.is_ready:
                continue
            try:
                awaited.attach(request)
            except RequestError as error:
                yield request, str(error)
            except Exception as error:  # or it would be tried again in every step
                logger.exception("request %r cannot get what it waited for", request.request_id)
                yield request, f"{awaited.describe()} failed: {type(error).__name__}: {error}"
            else:
                yield request, None

    def explain(self, request_id: str) -> str | None:
        """What a request waits for; None if it does not."""
        found = self._waiting.get(request_id)
        return None if found is None else f"waiting for {found[1].describe()}"
