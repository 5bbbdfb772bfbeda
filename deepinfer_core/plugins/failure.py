"""One failure policy: whatever goes wrong with a selected plugin stops start-up with one kind of message."""

from __future__ import annotations

from typing import Literal

from deepinfer_core.errors import DeepInferError, PluginError
from deepinfer_core.plugins.discovery import PluginRecord

Phase = Literal["discover", "probe", "import", "configure", "bind", "run"]
Source = Literal["argument", "file", "environment", "default", "builtin"]

_rank: int | None = None


def set_rank(rank: int | None) -> None:
    """Say which rank this process is, for its messages; None for the driver."""
    global _rank
    _rank = rank


def failure(phase: Phase, cause: BaseException | str, record: PluginRecord, source: Source) -> PluginError:
    """The error for one plugin: distribution, version, entry point, phase, rank, cause and how to go on without."""
    why = str(cause) if isinstance(cause, str | DeepInferError) else f"{type(cause).__name__}: {cause}"
    on = "" if _rank is None else f" on rank {_rank}"
    error = PluginError(
        f"plugin {record.name!r} ({record.distribution} {record.version}, entry point "
        f"{record.name} = {record.package}) failed in phase {phase!r}{on}: {why}\n"
        f"To go on without it: {_remedy(record, source)}"
    )
    if isinstance(cause, BaseException):
        error.__cause__ = cause
    return error


def _remedy(record: PluginRecord, source: Source) -> str:
    if source == "argument":
        return f"leave {record.name!r} out of plugins=[...], --plugins and --backend"
    if source == "builtin":
        return "name a plugin that fills the same seam in plugins=[...]"
    return f"deepinfer plugins disable {record.name}"
