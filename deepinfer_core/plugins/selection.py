"""What is to be active: names from arguments and the environment, objects from Python, and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from deepinfer_core.errors import ConfigError, PluginError, nearest
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.discovery import BUILTIN, PluginRecord
from deepinfer_core.plugins.failure import Source, failure
from deepinfer_core.plugins.hooks import hook_names
from deepinfer_core.plugins.loading import instantiate
from deepinfer_core.plugins.manifest import Component

if TYPE_CHECKING:
    from deepinfer_core.plugins.configuration import Configuration
    from deepinfer_core.plugins.settings import Layer

#: What fills an exclusive seam first.
RANK: Mapping[Source, int] = {"argument": 0, "file": 1, "environment": 2, "default": 3, "builtin": 4}

#: Identifies a component among all installed ones: distribution, plugin, seam, component.
Key = tuple[str, str, str, str]


@define(eq=False, kw_only=True)
class Selected:
    """One selected component; ``instance`` is what it became, once loaded.

    is_tolerated: an observer whose failures are logged rather than raised.
    """

    seam: str
    name: str
    record: PluginRecord
    source: Source
    reason: str
    position: int
    component: Component | None = None
    instance: Any = None
    is_loaded: bool = False
    keys: tuple[str, ...] = ()
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    requires: Sequence[str] = ()
    conflicts: Sequence[str] = ()
    capabilities: Mapping[str, Any] = field(factory=dict)
    roles: Sequence[str] = ("driver",)
    is_tolerated: bool = False

    @property
    def key(self) -> Key:
        """Identifies the component among all installed ones."""
        return (self.record.distribution, self.record.name, self.seam, self.name)

    @property
    def names(self) -> frozenset[str]:
        """What ``before`` and ``after`` of others may call it: the component or its plugin."""
        return frozenset((self.name, self.record.name))

    @property
    def is_object(self) -> bool:
        """Whether it was given as a Python object rather than by name."""
        return self.component is None

    @property
    def tie(self) -> tuple[object, ...]:
        """Distributions by name, then what Python gave, in the order given."""
        return (self.is_object, "" if self.is_object else self.record.distribution, self.position)

    @property
    def owner(self) -> str:
        """The component and who ships it, for messages."""
        return f"{self.name!r} ({self.record.distribution} {self.record.version})".replace(" )", ")")


def components_for(record: PluginRecord, seam: str) -> list[Component]:
    """What a plugin declares for one seam."""
    return [c for c in record.manifest.components if c.seam == seam] if record.manifest else []


def by_name(name: str, records: Iterable[PluginRecord], source: Source) -> PluginRecord:
    """The plugin called ``name``, usable or disabled. Raises PluginError: unknown (with the nearest), broken,
    incompatible.
    """
    found = [record for record in records if record.name == name]
    if not found:
        known = sorted({record.name for record in records})
        raise PluginError(f"unknown plugin {name!r}{nearest(name, known)} (installed: {', '.join(known)})")
    record = found[0]
    if record.state not in ("available", "disabled"):
        raise failure("discover", record.reason, record, source)
    return record


def with_disabled(records: Iterable[PluginRecord], layers: Sequence[Layer], backend: str) -> list[PluginRecord]:
    """The records; those that a layer disables and no argument names are marked. ``backend``: the argument's."""
    given = {item for item in layers[0].plugins if isinstance(item, str)} | {backend}
    result = []
    for record in records:
        layer = next((layer for layer in layers if record.name in layer.disabled), None)
        backends = {component.name for component in components_for(record, "backend")}
        if layer is not None and not given & {record.name, *backends}:
            if record.name == BUILTIN:
                raise ConfigError(f"{layer.where}: the built-in plugin {BUILTIN!r} cannot be disabled")
            also = f" (and {record.state}: {record.reason})" if record.reason else ""
            record = evolve(record, state="disabled", reason=f"disabled in {layer.where}{also}")
        result.append(record)
    return result


def from_record(record: PluginRecord, source: Source, reason: str) -> list[Selected]:
    """Every component of one plugin."""
    if record.manifest is None:
        raise failure("discover", "it has no manifest", record, source)
    return [
        Selected(
            seam=component.seam,
            name=component.name,
            record=record,
            source=source,
            reason=reason,
            position=position,
            component=component,
            keys=component.keys,
            before=component.before,
            after=component.after,
            requires=component.requires,
            conflicts=component.conflicts,
            capabilities=component.capabilities,
            roles=component.roles,
        )
        for position, component in enumerate(record.manifest.components)
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
    seam = getattr(item, "seam", None)
    hooked = hook_names(item)
    _check_object(item, seam, bool(hooked), record)
    seams = [seam] if seam else []
    seams += ["hooks"] if hooked and seam != "hooks" else []
    return [
        Selected(
            seam=each,
            name=str(getattr(item, "name", None) or name),
            record=record,
            source="argument",
            reason="given in plugins=[...]",
            position=position,
            instance=item,
            is_loaded=True,
            keys=tuple(getattr(item, SEAMS[each].key or "", ())),
            before=tuple(getattr(item, "before", ())),
            after=tuple(getattr(item, "after", ())),
            requires=tuple(getattr(item, "requires", ())),
            conflicts=tuple(getattr(item, "conflicts", ())),
        )
        for each in seams
    ]


def _check_object(item: object, seam: object, has_hooks: bool, record: PluginRecord) -> None:
    if seam is None and not has_hooks:
        raise failure(
            "bind",
            f"{item!r} provides nothing: mark hooks with deepinfer_core.hookspecs.hookimpl, or set the "
            "attribute 'seam', or give the name of an installed plugin",
            record,
            "argument",
        )
    if seam is None:
        return
    if not isinstance(seam, str) or seam not in SEAMS:
        near = nearest(str(seam), SEAMS)
        raise failure("bind", f"unknown seam {seam!r}{near} (known: {', '.join(SEAMS)})", record, "argument")
    key = SEAMS[seam].key
    if key and not getattr(item, key, None):
        raise failure("bind", f"seam {seam!r} needs the attribute {key!r}, a list of names", record, "argument")
