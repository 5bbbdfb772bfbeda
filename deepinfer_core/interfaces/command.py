"""The ``command`` seam: a further ``deepinfer`` subcommand, named as its component is in the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse


class Command(Protocol):
    """Imported only when the user types the subcommand. Its one-line help is the capability ``help``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the subcommand's options to ``parser``."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit code: 0 ok, 2 bad input. ``DeepInferError`` becomes a 2."""
        ...
