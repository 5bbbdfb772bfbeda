"""Resolve once, carry everywhere: the selection as plain data that a worker's process confirms and loads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.failure import Source
from deepinfer_core.plugins.selection import Selected, from_record
from deepinfer_core.plugins.settings import Configuration, Layer
from deepinfer_core.plugins.table import aligned

_CODE: Final = frozenset({".py", ".toml", ".so", ".pyd", ".dylib"})


@frozen
class FrozenPlugin:
    """Which code a plugin is: ``digest`` is of every file of code in its package."""

    name: str
    distribution: str
    version: str
    digest: str


@frozen
class FrozenComponent:
    """One active component."""

    plugin: str
    seam: str
    name: str
    source: Source
    reason: str


@frozen
class FrozenTable:
    """What the workers load, in order, and from which code. Can be pickled.

    layers: configuration, by falling precedence.
    """

    plugins: tuple[FrozenPlugin, ...]
    components: tuple[FrozenComponent, ...]
    layers: tuple[Layer, ...]


def freeze(selected: Sequence[Selected], configuration: Configuration) -> FrozenTable:
    """The part of a selection that runs on workers. Raises PluginError for a Python object in it."""
    carried = [s for s in selected if "worker" in SEAMS[s.seam].runs_on]
    for s in carried:
        if s.is_object:
            raise PluginError(
                f"{s.name!r} fills the seam {s.seam!r}, which runs in the workers' processes, and is an object of this "
                "one; install it as a plugin and give its name"
            )
    carried = [s for s in carried if "worker" in s.component.roles]
    records = {s.record.name: s.record for s in carried}
    return FrozenTable(
        tuple(map(_freeze_plugin, records.values())),
        tuple(FrozenComponent(s.record.name, s.seam, s.name, s.source, s.reason) for s in carried),
        configuration.carried(records),
    )


def _freeze_plugin(record: PluginRecord) -> FrozenPlugin:
    return FrozenPlugin(record.name, record.distribution, record.version, code_digest(record))


def code_digest(record: PluginRecord) -> str:
    """A short hash of the code in a plugin's package, names and contents; empty if it is not found."""
    if record.folder is None:
        return ""
    total = hashlib.blake2b(digest_size=8)
    for path in sorted(p for p in record.folder.rglob("*") if p.suffix in _CODE and p.is_file()):
        total.update(path.relative_to(record.folder).as_posix().encode() + b"\0")
        total.update(_contents(path))
    return total.hexdigest()


def _contents(path: Path) -> bytes:
    try:
        return hashlib.blake2b(path.read_bytes()).digest()
    except OSError as error:
        return str(error.errno).encode()


def thaw(table: FrozenTable, records: Iterable[PluginRecord], rank: int) -> list[Selected]:
    """The selection again, in its order. Raises PluginError, with a table of both sides, unless every carried plugin
    is the same one here.
    """
    known = {record.name: record for record in records if record.state in ("available", "disabled")}
    here = {p.name: _freeze_plugin(known[p.name]) for p in table.plugins if p.name in known}
    if any(here.get(p.name) != p for p in table.plugins):
        rows = [("plugin", "driver", f"rank {rank}", "")]
        for p in table.plugins:
            found = here.get(p.name)
            rows.append((p.name, _text(p), _text(found), "" if found == p else "differs"))
        raise PluginError(
            f"rank {rank} has other plugins than the driver; install the same ones in both environments:\n"
            + "\n".join(aligned(rows))
        )
    return [
        s
        for component in table.components
        for s in from_record(known[component.plugin], component.source, component.reason)
        if (s.seam, s.name) == (component.seam, component.name)
    ]


def _text(plugin: FrozenPlugin | None) -> str:
    return f"{plugin.distribution} {plugin.version} ({plugin.digest})" if plugin else "not installed"
