"""The start-up banner: the active plugins, logged once per process."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from deepinfer_core.plugins.table import PluginRow, aligned

logger = logging.getLogger(__name__)

_shown: set[str] = set()


def show_banner(rows: Iterable[PluginRow]) -> None:
    """Log the active rows at level INFO, unless this process has logged the same ones before."""
    text = banner(rows)
    if text not in _shown:
        _shown.add(text)
        logger.info("active plugins:\n%s", text)


def banner(rows: Iterable[PluginRow]) -> str:
    """One line per active component: seam, component, distribution with version, reason."""
    cells = [
        ("", row.seam, row.component, f"{row.distribution} {row.version}".strip(), row.reason)
        for row in rows
        if row.state == "active"
    ]
    return "\n".join(aligned(cells))
