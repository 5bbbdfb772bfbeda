"""``deepinfer models``: checkpoints that installed packages ship. Imports no plugin."""

from __future__ import annotations

import argparse
import json
import sys

import attrs

from deepinfer_core.cli.plugins_list import forgiving_manager
from deepinfer_core.cli.tables import print_table
from deepinfer_core.config import DEFAULT_MODEL
from deepinfer_core.plugins.table import CheckpointRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer models``."""
    parser.add_argument("action", choices=["list"], help="list: one line per model that --model knows by name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    rows = forgiving_manager().checkpoints()
    if args.json:
        print(json.dumps([attrs.asdict(row) for row in rows], indent=2))
        return 0
    if not rows:
        print(f"no checkpoint package is installed; try: pip install deepinfer-model-{DEFAULT_MODEL}", file=sys.stderr)
        return 0
    print_table(tuple(field.name for field in attrs.fields(CheckpointRow)), [attrs.astuple(row) for row in rows])
    return 0
