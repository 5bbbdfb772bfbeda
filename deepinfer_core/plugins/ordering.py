"""The order of components within a chained or collected seam."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol, TypeVar

from deepinfer_core.errors import PluginError


class Ordered(Protocol):
    """What ordering needs to know of a component."""

    @property
    def names(self) -> frozenset[str]:
        """The names by which ``before`` and ``after`` of others may call it."""

    @property
    def before(self) -> Sequence[str]:
        """Names of components it must precede."""

    @property
    def after(self) -> Sequence[str]:
        """Names of components it must follow."""

    @property
    def tie(self) -> tuple[object, ...]:
        """Decides between components that nothing else orders; unique."""

    @property
    def owner(self) -> str:
        """The component and who ships it, for messages."""


T = TypeVar("T", bound=Ordered)


def order(components: Sequence[T]) -> tuple[T, ...]:
    """Sort by ``before``/``after``, ties by ``tie``; independent of the order given.

    Names that no component of the seam has are ignored: what they mean is not active. Raises PluginError
    for a cycle, naming the owners in it.
    """
    items = sorted(components, key=lambda item: item.tie)
    followers: list[set[int]] = [set() for _ in items]
    for i, item in enumerate(items):
        for j, other in enumerate(items):
            if i != j and other.names.intersection(item.before):
                followers[i].add(j)
            if i != j and other.names.intersection(item.after):
                followers[j].add(i)
    waiting = [sum(i in after for after in followers) for i in range(len(items))]
    ready = [i for i, count in enumerate(waiting) if not count]
    result = []
    while ready:
        first = heapq.heappop(ready)
        result.append(items[first])
        for follower in followers[first]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(result) < len(items):
        owners = ", ".join(item.owner for item, count in zip(items, waiting, strict=True) if count > 0)
        raise PluginError(f"before/after of these components contradict each other: {owners}")
    return tuple(result)
