"""An argument parser that says which option was probably meant."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from deepinfer_core.errors import nearest


class Parser(argparse.ArgumentParser):
    """Exits with code 2 and one paragraph on standard error; abbreviated options are not accepted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, conflict_handler="resolve", **options)

    def error(self, message: str) -> NoReturn:
        """Print the message, with the nearest known option after an unknown one, and exit with code 2."""
        _, is_unknown, rest = message.partition("unrecognized arguments: ")
        options = [word.partition("=")[0] for word in rest.split() if word.startswith("--")]
        if is_unknown and options:
            message += nearest(options[0], self._option_string_actions)
        self.exit(2, f"{self.prog}: error: {message}\nSee {self.prog} --help\n")


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """The option ``--config`` of commands that look at plugins."""
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file that selects and configures plugins (default: the user's own)"
    )
