"""``deepinfer inspect``: a checkpoint's config as the model understands it, and its layer plan."""

from __future__ import annotations

import argparse
import json
from typing import Any

import attrs

from deepinfer_core.cli.parser import add_config_argument
from deepinfer_core.cli.tables import print_table
from deepinfer_core.config import DEFAULT_MODEL
from deepinfer_core.envs import parse_names
from deepinfer_core.model_loader.resolve import open_model
from deepinfer_core.plugins import PluginManager


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer inspect``."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL,
        help=f"folder or name, as for generate --model; its weights are not read (default: {DEFAULT_MODEL})",
    )  # fmt: skip
    parser.add_argument("--plugins", metavar="NAMES", default="", help="plugins to activate, separated by commas")
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print the summary and the plan."""
    manager = PluginManager(parse_names(args.plugins), config_file=args.config)
    checkpoint = open_model(args.model, manager)
    config = manager.model_for(checkpoint.architecture).translate_config(checkpoint.config)
    plugin = next(row for row in manager.table() if row.seam == "model" and row.state == "active")
    headers, rows = config.plan.table()
    summary = {
        "model": str(checkpoint.path),
        "architecture": checkpoint.architecture,
        "plugin": f"{plugin.name} ({plugin.distribution} {plugin.version})",
        **_flatten(config),
        "eos_token_ids": sorted({*config.eos_token_ids, *checkpoint.eos_token_ids}),
    }
    if args.json:
        plan = [dict(zip(headers, row, strict=True)) for row in rows]
        print(json.dumps({**summary, "plan": plan}, indent=2))
        return 0
    print_table(("key", "value"), [(key, _text(value)) for key, value in summary.items()])
    print()
    print_table(headers, rows)
    return 0


def _flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Plain fields of a config and, with dotted names, of its parts; the layer plan is shown by itself."""
    if not attrs.has(type(config)):
        names = ("vocab_size", "max_position_embeddings")
        return {name: getattr(config, name) for name in names}
    flat: dict[str, Any] = {}
    for field in attrs.fields(type(config)):
        value = getattr(config, field.name)
        if attrs.has(type(value)):
            flat |= _flatten(value, f"{prefix}{field.name}.")
        elif _is_plain(value):
            flat[prefix + field.name] = list(value) if isinstance(value, tuple) else value
    return flat


def _is_plain(value: object) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return all(item is None or isinstance(item, str | int | float | bool) for item in items)


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
