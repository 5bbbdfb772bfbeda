"""The ``kv_connector`` seam: the state of computed prefixes, kept outside or handed over to another engine.

A prefix is a whole number of pages. Page i has a key that stands for every token up to the page's end, the model
and the request's ``cache_salt``; equal keys mean equal state. To go on behind a prefix an engine needs its pages and
the sequence's slot as it was at the prefix's end. The core owns pages and slots, chooses what is saved and loaded, and
uses nothing before it is reported as done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(eq=False)
class KvCaches:
    """The tensors that pages and slots are in, by buffer name: ``[pages, …]`` and ``[slots, …]``."""

    pages: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]


@attrs.frozen
class KvTransfer:
    """One prefix, or its last part, to be copied.

    transfer_id: unique, never used again.
    keys: of all pages of the prefix, from the start of the sequence.
    first: pages ``first`` and later are copied; those before are there already.
    pages: ``len(keys) - first`` pages, numbers in :class:`KvCaches`, in order.
    slot: whose state belongs to the prefix's end.
    """

    transfer_id: int
    keys: tuple[bytes, ...]
    pages: tuple[int, ...]
    slot: int
    first: int = 0

    def __attrs_post_init__(self) -> None:
        if len(self.pages) != len(self.keys) - self.first or not self.pages:
            raise ValueError(f"a transfer needs a page for each key from {self.first} on, got {self}")


@attrs.frozen
class KvResult:
    """How a transfer ended: ``error`` None for well, else why not; then what was to be loaded is not used."""

    transfer_id: int
    error: str | None = None


@runtime_checkable
class KvConnector(Protocol):
    """A component of the seam. Called on the worker, from one thread; copies may go on in others.

    Until a transfer is reported by :meth:`finished` its pages and its slot belong to it: the core neither writes
    nor frees them. No call may wait for a transfer.
    """

    def attach(self, caches: KvCaches) -> None:
        """Called once, when the caches are allocated. The tensors may be kept."""
        ...

    def find(self, prefixes: Sequence[tuple[bytes, ...]]) -> Sequence[int]:
        """How many leading pages of each prefix could be loaded now, with the slot at their end; 0 for none.

        Called at most once per step, with the keys of the requests that are about to be admitted. An answer is no
        promise: a load that fails later is computed instead.
        """
        ...

    def load(self, transfers: Sequence[KvTransfer]) -> None:
        """Start to fill pages and slots. A page or a slot that the transfer does not name stays as it is."""
        ...

    def save(self, transfers: Sequence[KvTransfer]) -> None:
        """Start to keep pages and slots, for :meth:`find` to report once they are."""
        ...

    def finished(self) -> Sequence[KvResult]:
        """The transfers that ended since the last call, each exactly once. Called once per step."""
        ...

    def close(self) -> None:
        """End: what is under way is given up. Called once, also after failures."""
        ...
