"""The resolved table: every component, its state and the reason, as users and scripts see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, frozen

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
    """One line of ``deepinfer models list``: a model that a plugin ships."""

    name: str
    plugin: str
    distribution: str
    version: str
    license: str
    summary: str


def checkpoint_row(name: str, record: PluginRecord, component: Component | None = None) -> CheckpointRow:
    """What the manifest says of one model; a Python object says nothing but its name."""
    license = str(component.capabilities.get("license", "")) if component else ""
    summary = record.manifest.summary if record.manifest else ""
    return CheckpointRow(name, record.name, record.distribution, record.version, license, summary)


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
    rows = [
        PluginRow(s.record.name, s.seam, s.name, s.record.distribution, s.record.version, "active", s.reason)
        for s in selected
    ]
    active = {s.key for s in selected}
    for record in records:
        if record.manifest is None:
            rows.append(_row(record, "", "", record.reason))
        for c in record.manifest.components if record.manifest else ():
            key = (record.distribution, record.name, c.seam, c.name)
            if key in dropped:
                rows.append(_row(evolve(record, state="broken"), c.seam, c.name, dropped[key]))
            elif key not in active:
                reason = record.reason or overridden.get(key) or _offer(c.seam, c.keys)
                rows.append(_row(record, c.seam, c.name, reason))
    seams = ["", *SEAMS]
    return tuple(sorted(rows, key=lambda row: (seams.index(row.seam), row.state)))


def _row(record: PluginRecord, seam: str, component: str, reason: str) -> PluginRow:
    return PluginRow(record.name, seam, component, record.distribution, record.version, record.state, reason)


def _offer(seam: str, keys: Sequence[str]) -> str:
    if keys:
        return f"used for {', '.join(keys)}"
    return "chosen at start-up, or by --backend" if seam == "backend" else "not selected"
