"""``deepinfer plugins show``: all that is known of one plugin. Its configuration is read in a child process."""

from __future__ import annotations

import argparse
import json
from typing import Any

from deepinfer_core.cli.parser import add_config_argument
from deepinfer_core.cli.plugins_list import forgiving_manager
from deepinfer_core.cli.tables import print_table
from deepinfer_core.errors import PluginError, nearest
from deepinfer_core.plugins.carry import code_digest
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.probe import run_children
from deepinfer_core.plugins.table import PluginRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer plugins show``."""
    parser.add_argument("plugin", metavar="NAME", help="a plugin's name, as plugins list shows it")
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print the plugin; several of one name one after another."""
    manager = forgiving_manager(args.config)
    records = [record for record in manager.records if record.name == args.plugin]
    if not records:
        known = sorted({record.name for record in manager.records})
        hint = f"{nearest(args.plugin, known)} (installed: {', '.join(known)})"
        raise PluginError(f"unknown plugin {args.plugin!r}{hint}")
    rows = manager.table()
    shown = [_describe(record, [row for row in rows if _is_of(row, record)]) for record in records]
    if args.json:
        print(json.dumps(shown if len(shown) > 1 else shown[0], indent=2))
        return 0
    for number, plugin in enumerate(shown):
        print("\n" * bool(number), end="")
        _print(plugin)
    return 0


def _is_of(row: PluginRow, record: PluginRecord) -> bool:
    return (row.name, row.distribution) == (record.name, record.distribution)


def _describe(record: PluginRecord, rows: list[PluginRow]) -> dict[str, Any]:
    manifest = record.manifest
    components = manifest.components if manifest else ()
    state = {(row.seam, row.component): row for row in rows}
    return {
        "name": record.name,
        "summary": manifest.summary if manifest else "",
        "distribution": record.distribution,
        "version": record.version,
        "entry_point": f"{record.name} = {record.package}",
        "folder": str(record.folder or ""),
        "digest": code_digest(record),
        "seam_versions": manifest.api if manifest else "",
        "state": _plugin_state(record, rows),
        "reason": record.reason,
        "components": [_component(c, state[c.seam, c.name]) for c in components],
        "configuration": _schemas(components) if record.state != "incompatible" else {},
    }


def _plugin_state(record: PluginRecord, rows: list[PluginRow]) -> str:
    return "active" if any(row.state == "active" for row in rows) else record.state


def _component(component: Component, row: PluginRow) -> dict[str, Any]:
    return {
        "seam": component.seam,
        "name": component.name,
        "object": component.object,
        "roles": list(component.roles),
        "state": row.state,
        "reason": row.reason,
        "capabilities": dict(component.capabilities),
        "before": list(component.before),
        "after": list(component.after),
        "requires": list(component.requires),
        "conflicts": list(component.conflicts),
        "probe": component.probe,
        "default": component.default,
    }


def _schemas(components: tuple[Component, ...]) -> dict[str, Any]:
    """By component: rows of keys, or why they cannot be told. Components without a configuration are left out."""
    calls = [[component.object, component.config] for component in components]
    answers = run_children("deepinfer_core.plugins.diagnosis:config_schema", calls, what="importing it")
    found = {c.name: answer.failure or answer.value for c, answer in zip(components, answers, strict=True)}
    return {name: schema for name, schema in found.items() if schema is not None}


def _print(plugin: dict[str, Any]) -> None:
    plain = {key: value for key, value in plugin.items() if isinstance(value, str) and value}
    print_table(("key", "value"), list(plain.items()))
    columns = ("seam", "name", "object", "roles", "state", "reason")
    if plugin["components"]:
        print("\ncomponents:")
        print_table(columns, [[_text(c[column]) for column in columns] for c in plugin["components"]])
    for component in plugin["components"]:
        more = {key: c for key, c in component.items() if key not in columns and c}
        if more:
            print(f"\n{component['name']}:")
            print_table(("key", "value"), [(key, _text(value)) for key, value in more.items()])
    for name, schema in plugin["configuration"].items():
        print(f"\nconfiguration of {name} (plugin_config, --plugin-config {plugin['name']}.KEY=VALUE):")
        if isinstance(schema, str):
            print(f"cannot be told: {schema}")
        else:
            print_table(("key", "type", "default", "help"), [list(row.values()) for row in schema])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_text(item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
