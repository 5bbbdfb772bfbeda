"""From what the sources name to what is active: each seam's kind, unique names, a total order, what goes together."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from attrs import define, evolve

from deepinfer_core.errors import ConfigError, PluginError, nearest
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.discovery import BUILTIN, PluginRecord
from deepinfer_core.plugins.failure import Source, failure
from deepinfer_core.plugins.hooks import hook_names
from deepinfer_core.plugins.loading import instantiate
from deepinfer_core.plugins.manifest import Component, Term, parse_term

if TYPE_CHECKING:
    from deepinfer_core.plugins.settings import Configuration, Layer

#: What fills an exclusive seam first.
RANK: Mapping[Source, int] = {"argument": 0, "file": 1, "environment": 2, "default": 3, "builtin": 4}

#: Identifies a component among all installed ones: distribution, plugin, seam, component.
Key = tuple[str, str, str, str]


@define(eq=False, kw_only=True)
class Selected:
    """One selected component; ``instance`` is what it became, once loaded.

    position: among the components of its plugin, or the objects given in Python.
    is_tolerated: an observer whose failures are logged rather than raised.
    """

    component: Component
    record: PluginRecord
    source: Source
    reason: str
    position: int
    instance: Any = None
    is_loaded: bool = False
    is_tolerated: bool = False

    @property
    def seam(self) -> str:
        """The component's seam."""
        return self.component.seam

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name

    @property
    def key(self) -> Key:
        """Identifies the component among all installed ones."""
        return (self.record.distribution, self.record.name, self.seam, self.name)

    @property
    def is_object(self) -> bool:
        """Whether it was given as a Python object rather than by name."""
        return not self.component.object

    @property
    def tie(self) -> tuple[object, ...]:
        """Decides where nothing else orders: distributions by name, then what Python gave, in the order given."""
        return (self.is_object, "" if self.is_object else self.record.distribution, self.position)

    @property
    def owner(self) -> str:
        """The component and who ships it, for messages."""
        return f"{self.name!r} ({self.record.distribution} {self.record.version})".replace(" )", ")")


# -- what the sources name ----------------------------------------------------------------------------


def unknown_plugin(name: str, records: Iterable[PluginRecord]) -> PluginError:
    """The error for a name that no installed plugin has, with the nearest that one has."""
    known = sorted({record.name for record in records})
    return PluginError(f"unknown plugin {name!r}{nearest(name, known)} (installed: {', '.join(known)})")


def by_name(name: str, records: Iterable[PluginRecord], source: Source) -> PluginRecord:
    """The plugin called ``name``, usable or disabled. Raises PluginError: unknown (with the nearest), broken,
    incompatible.
    """
    record = next((record for record in records if record.name == name), None)
    if record is None:
        raise unknown_plugin(name, records)
    if record.state not in ("available", "disabled"):
        raise failure("discover", record.reason, record, source)
    return record


def with_disabled(records: Iterable[PluginRecord], layers: Sequence[Layer], backend: str) -> list[PluginRecord]:
    """The records; those that a layer disables and no argument names are marked. ``backend``: the argument's."""
    given = {item for item in layers[0].plugins if isinstance(item, str)} | {backend}
    result = []
    for record in records:
        layer = next((layer for layer in layers if record.name in layer.disabled), None)
        names = {record.name, *(component.name for component in record.components("backend"))}
        if layer is not None and not given & names:
            if record.name == BUILTIN:
                raise ConfigError(f"{layer.where}: the built-in plugin {BUILTIN!r} cannot be disabled")
            also = f" (and {record.state}: {record.reason})" if record.reason else ""
            record = evolve(record, state="disabled", reason=f"disabled in {layer.where}{also}")
        result.append(record)
    return result


def from_record(record: PluginRecord, source: Source, reason: str) -> list[Selected]:
    """Every component of one plugin."""
    return [
        Selected(component=component, record=record, source=source, reason=reason, position=position)
        for position, component in enumerate(record.components())
    ]


def from_object(item: object, position: int, configuration: Configuration) -> list[Selected]:
    """What a Python object or class provides: hooks, the seam that its attribute ``seam`` names, or both.

    A class is called first, with its configuration if it has a ``config_class``.
    """
    cls = item if isinstance(item, type) else type(item)
    name = getattr(item, "__name__", cls.__name__) if inspect.ismodule(item) else cls.__name__
    record = PluginRecord(name, "Python object", "", f"{cls.__module__}:{cls.__qualname__}")
    if isinstance(item, type):
        item = instantiate(item, str(getattr(item, "name", name)), record, "argument", configuration)
    return [
        Selected(
            component=_component_of(item, seam, str(getattr(item, "name", None) or name)),
            record=record,
            source="argument",
            reason="given in plugins=[...]",
            position=position,
            instance=item,
            is_loaded=True,
        )
        for seam in _seams_of(item, record)
    ]


def _component_of(item: object, seam: str, name: str) -> Component:
    before, after, requires, conflicts = (
        tuple(getattr(item, key, ())) for key in ("before", "after", "requires", "conflicts")
    )
    key = SEAMS[seam].key
    return Component(
        seam=seam,
        name=name,
        object="",
        capabilities={key: list(getattr(item, key))} if key else {},
        before=before,
        after=after,
        requires=requires,
        conflicts=conflicts,
    )


def _seams_of(item: object, record: PluginRecord) -> list[str]:
    seam, cause = getattr(item, "seam", None), ""
    has_hooks = bool(hook_names(item))
    if seam is None:
        if not has_hooks:
            cause = (
                f"{item!r} provides nothing: mark hooks with deepinfer_core.hookspecs.hookimpl, or set the "
                "attribute 'seam', or give the name of an installed plugin"
            )
    elif not isinstance(seam, str) or seam not in SEAMS:
        cause = f"unknown seam {seam!r}{nearest(str(seam), SEAMS)} (known: {', '.join(SEAMS)})"
    elif (key := SEAMS[seam].key) and not getattr(item, key, None):
        cause = f"seam {seam!r} needs the attribute {key!r}, a list of names"
    if cause:
        raise failure("bind", cause, record, "argument")
    return list(dict.fromkeys(([seam] if seam else []) + (["hooks"] if has_hooks else [])))


def number_objects(selected: Iterable[Selected]) -> None:
    """Tell Python objects of one name apart: the second gets the suffix ``-2``."""
    seen: Counter[tuple[str, str]] = Counter()
    for s in (s for s in selected if s.is_object):
        place = (s.seam, s.name)
        seen[place] += 1
        if seen[place] > 1:
            s.component = evolve(s.component, name=f"{s.name}-{seen[place]}")


# -- what is active -----------------------------------------------------------------------------------


def settle(selected: Sequence[Selected]) -> tuple[list[Selected], dict[Key, str]]:
    """What is active, seam by seam and in order; and of what gave way, to whom.

    Raises PluginError naming the owners: of several components for an exclusive seam from one source, of equal
    names, and of contradicting orders.
    """
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
        for s in group:
            same = [other for other in group if other.name == s.name]
            if len(same) > 1:
                both = join_owners(same)
                raise PluginError(f"seam {name!r} has two components of one name: {both}; leave out one")
        settled += order(group)
    return settled, overridden


def order(components: Sequence[Selected]) -> tuple[Selected, ...]:
    """Sort by ``before`` and ``after``, ties by ``tie``; independent of the order given.

    Names that no component of the seam has are ignored: what they mean is not active. Raises PluginError
    for a cycle, naming the owners in it.
    """
    items = sorted(components, key=lambda item: item.tie)
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(items)), ()))
    for i, item in enumerate(items):
        for j, other in enumerate(items):
            names = {other.name, other.record.name}
            if i != j and names.intersection(item.component.before):
                sorter.add(j, i)
            if i != j and names.intersection(item.component.after):
                sorter.add(i, j)
    try:
        sorter.prepare()
    except CycleError as error:
        owners = ", ".join(items[place].owner for place in sorted(set(error.args[1])))
        raise PluginError(f"before/after of these components contradict each other: {owners}") from None
    result: list[Selected] = []
    ready: list[int] = []
    while sorter.is_active():
        first, *ready = sorted([*ready, *sorter.get_ready()])
        sorter.done(first)
        result.append(items[first])
    return tuple(result)


def check_together(active: Sequence[Selected]) -> None:
    """Raise PluginError naming both sides when active components cannot run together, or one lacks what it needs."""
    for selected in active:
        what = f"the {selected.seam} {selected.owner}"
        for text in selected.component.conflicts:
            for other in _matching(parse_term("conflicts", text), active):
                if other is not selected:
                    raise PluginError(
                        f"{what} cannot run together with the {other.seam} {other.owner}: it declares "
                        f"conflicts = [{text!r}]; leave out one of them"
                    )
        for text in selected.component.requires:
            term = parse_term("requires", text)
            if not _matching(term, active):
                present = [f"the {other.seam} {other.owner}" for other in active if other.seam == term.seam]
                raise PluginError(
                    f"{what} needs {text!r}, which no active component provides (active for "
                    f"{term.seam!r}: {' and '.join(present) or 'none'}); select one that does, or leave it out"
                )


def _matching(term: Term, active: Sequence[Selected]) -> list[Selected]:
    # The core's own defaults can be replaced but not left out, so only a term that names one means it.
    is_precise = term.component is not None or term.capability is not None
    return [
        s
        for s in active
        if term.matches(s.seam, s.name, s.component.capabilities) and (s.source != "builtin" or is_precise)
    ]


def join_owners(group: Iterable[Selected]) -> str:
    """The components and who ships them, for messages."""
    return " and ".join(s.owner for s in group)
