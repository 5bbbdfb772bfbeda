"""Plugins that this version of the engine would silently ignore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import SEAMS

if TYPE_CHECKING:
    from deepinfer_core.plugins.manager import PluginManager


def refuse_uncalled(manager: PluginManager) -> None:
    """Raise PluginError if a component is active whose seam the engine does not call.

    Seams whose components are looked up by a key are left out: what asks for one of them is refused itself.
    """
    for row in manager.table():
        if row.state == "active" and SEAMS[row.seam].is_eager and not SEAMS[row.seam].is_called:
            raise PluginError(
                f"plugin {row.name!r} ({row.distribution} {row.version}) fills the seam {row.seam!r}, which this "
                f"version of DeepInfer specifies but does not call; leave {row.name!r} out ({row.reason})"
            )
