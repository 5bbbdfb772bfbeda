"""What is told of plugins: a row per component."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.selection import Key, Selected


@frozen
class PluginRow:
    """One line of ``LLM.plugins`` and ``deepinfer plugins list``.

    state: active, available, disabled, incompatible or broken; ``reason`` says why. A plugin whose manifest cannot
    be read has one row without seam and component; a Python object has no version.
    """

    name: str
    seam: str
    component: str
    distribution: str
    version: str
    state: str
    reason: str


@frozen
class CheckpointRow:
    """One line of ``deepinfer models list``: a model that a plugin ships. Of a Python object only names are known."""

    name: str
    plugin: str
    distribution: str
    version: str
    license: str
    summary: str


def checkpoint_rows(record: PluginRecord, component: Component) -> list[CheckpointRow]:
    """What a component of the checkpoint seam ships."""
    license = str(component.capabilities.get("license", ""))
    summary = record.manifest.summary if record.manifest else ""
    who = (record.name, record.distribution, record.version)
    return [CheckpointRow(name, *who, license, summary) for name in component.keys]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def build_table(
    selected: Sequence[Selected],
    records: Iterable[PluginRecord],
    overridden: Mapping[Key, str],
    dropped: Mapping[Key, str],
) -> tuple[PluginRow, ...]:
    """Rows by seam, the active ones in their order first.

    overridden: why a component gave way; dropped: how an observer failed without which we go on.
    """
    active = {s.key for s in selected}
    rows = [_row(s.record, s.seam, s.name, "active", s.reason) for s in selected]
    for record in records:
        if record.manifest is None:
            rows.append(_row(record, "", "", record.state, record.reason))
        for c in record.components():
            key = (record.distribution, record.name, c.seam, c.name)
            if key in dropped:
                rows.append(_row(record, c.seam, c.name, "broken", dropped[key]))
            elif key not in active:
                reason = record.reason or overridden.get(key) or _offer(c)
                rows.append(_row(record, c.seam, c.name, record.state, reason))
    seams = ["", *SEAMS]
    return tuple(sorted(rows, key=lambda row: (seams.index(row.seam), row.state)))


def _row(record: PluginRecord, seam: str, component: str, state: str, reason: str) -> PluginRow:
    return PluginRow(record.name, seam, component, record.distribution, record.version, state, reason)


def _offer(component: Component) -> str:
    if component.keys:
        return f"used for {', '.join(component.keys)}"
    if component.seam == "backend":
        return "chosen at start-up, or by --backend"
    return "used where none is selected" if component.default else "not selected"
