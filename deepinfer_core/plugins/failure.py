"""One failure policy: whatever goes wrong with a selected plugin stops start-up with one kind of message."""

from __future__ import annotations

from typing import Literal

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins.discovery import PluginRecord

Phase = Literal["discover", "probe", "import", "configure", "bind", "run"]
Source = Literal["argument", "environment", "default", "builtin"]


def failure(phase: Phase, cause: BaseException | str, record: PluginRecord, source: Source) -> PluginError:
    """The error for one plugin: distribution, version, entry point, phase, cause and how to go on without."""
    why = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
    error = PluginError(
        f"plugin {record.name!r} ({record.distribution} {record.version}, entry point "
        f"{record.name} = {record.package}) failed in phase {phase!r}: {why}\n"
        f"To go on without it: {_remedy(record, source)}"
    )
    if isinstance(cause, BaseException):
        error.__cause__ = cause
    return error


def _remedy(record: PluginRecord, source: Source) -> str:
    if source == "argument":
        return f"leave {record.name!r} out of plugins=[...], --plugins and --backend"
    if source == "environment":
        return f"remove {record.name!r} from DEEPINFER_PLUGINS"
    if source == "builtin":
        return "name a plugin that fills the same seam in plugins=[...]"
    return f"pip uninstall {record.distribution}"
