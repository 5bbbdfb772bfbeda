"""Tables: drawn with rich on a terminal, plain aligned columns when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from deepinfer_core.plugins.table import aligned


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    """Print rows of text under their headers."""
    file = sys.stdout if file is None else file
    if file.isatty():
        _print_rich(headers, rows, file)
        return
    print("\n".join(aligned([headers, *rows])), file=file)


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], file: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: square brackets are no markup
    Console(file=file).print(table)
