"""``deepinfer plugins list``: what is installed and what is active."""

from __future__ import annotations

import argparse
import json
import sys

import attrs

from deepinfer_core.cli.parser import add_config_argument
from deepinfer_core.cli.tables import print_table
from deepinfer_core.errors import ConfigError, DeepInferError, nearest
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins import PluginManager, PluginRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer plugins list``."""
    parser.add_argument("--seam", metavar="SEAM", help=f"only this seam: {', '.join(SEAMS)}")
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.seam is not None and args.seam not in SEAMS:
        raise ConfigError(f"unknown seam {args.seam!r}{nearest(args.seam, SEAMS)} (known: {', '.join(SEAMS)})")
    rows = [row for row in plugin_rows(args.config) if args.seam in (None, row.seam)]
    if args.json:
        print(json.dumps([attrs.asdict(row) for row in rows], indent=2))
        return 0
    headers = tuple(field.name for field in attrs.fields(PluginRow))
    print_table(headers, [attrs.astuple(row) for row in rows])
    return 0


def plugin_rows(config_file: str | None = None) -> tuple[PluginRow, ...]:
    """The manager's table; when the settings themselves are at fault, without them and with a warning."""
    return forgiving_manager(config_file).table()


def forgiving_manager(config_file: str | None = None) -> PluginManager:
    """A manager that stands even if what the file or the environment says is wrong; then it warns and ignores it."""
    try:
        return PluginManager(config_file=config_file)
    except DeepInferError as error:
        print(f"warning: configuration file and DEEPINFER_PLUGINS are left out: {error}", file=sys.stderr)
        return PluginManager(environ={})
