"""``deepinfer plugins enable``: select a plugin in the configuration file. Imports no plugin."""

from __future__ import annotations

import argparse

from deepinfer_core.cli.parser import add_config_argument
from deepinfer_core.plugins.settings_edit import enable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer plugins enable``."""
    parser.add_argument("plugin", metavar="NAME", help="a plugin's name, as plugins list shows it")
    add_config_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Change the file and say where it is."""
    path = enable(args.plugin, args.config)
    print(f"{args.plugin} is enabled in {path}")
    return 0
