"""From what the sources select to what is active: each seam's kind, unique names, a total order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.ordering import order
from deepinfer_core.plugins.selection import RANK, Key, Selected

if TYPE_CHECKING:
    from deepinfer_core.plugins.configuration import Configuration


def settle(selected: Iterable[Selected]) -> tuple[list[Selected], dict[Key, str]]:
    """What is active, seam by seam and in order; and of what gave way, to whom.

    Raises PluginError naming the owners: of several components for an exclusive seam from one source, of equal
    names, and of contradicting orders.
    """
    selected = list(selected)
    settled: list[Selected] = []
    overridden: dict[Key, str] = {}
    for name, seam in SEAMS.items():
        group = [s for s in selected if s.seam == name]
        if seam.kind == "exclusive" and group:
            best = min(RANK[s.source] for s in group)
            losers = [s for s in group if RANK[s.source] > best]
            group = [s for s in group if RANK[s.source] == best]
            overridden.update((s.key, f"overridden by {group[0].owner}") for s in losers)
            if len(group) > 1:
                raise PluginError(
                    f"seam {name!r} takes one component, selected are {join_owners(group)}; leave out all but one"
                )
        _refuse_duplicates(name, group)
        settled += order(group)
    return settled, overridden


def number_objects(selected: Iterable[Selected]) -> None:
    """Tell Python objects of one name apart: the second gets the suffix ``-2``."""
    seen: Counter[tuple[str, str]] = Counter()
    for s in (s for s in selected if s.is_object):
        seen[s.seam, s.name] += 1
        if seen[s.seam, s.name] > 1:
            s.name = f"{s.name}-{seen[s.seam, s.name]}"


def mark_tolerated(selected: Sequence[Selected], configuration: Configuration) -> None:
    """Mark the observers whose failures are only logged. Raises PluginError for such a plugin that does more."""
    for s in selected:
        s.is_tolerated = configuration.is_tolerated(s.record.name)
        others = sorted({o.seam for o in selected if o.record is s.record} - {"hooks"})
        if s.is_tolerated and others:
            raise PluginError(
                f"on_error = 'warn' is for plugins that only observe; {s.record.name!r} also fills {others[0]!r}"
            )


def join_owners(group: Iterable[Selected]) -> str:
    """The components and who ships them, for messages."""
    return " and ".join(s.owner for s in group)


def _refuse_duplicates(seam: str, group: Sequence[Selected]) -> None:
    for name, count in Counter(s.name for s in group).items():
        if count > 1:
            both = join_owners(s for s in group if s.name == name)
            raise PluginError(f"seam {seam!r} has two components of one name: {both}; leave out one")
