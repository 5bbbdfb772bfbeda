"""One failure policy: whatever goes wrong with a selected plugin stops start-up with one kind of message."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


@contextmanager
def failing(phase: Phase, record: PluginRecord, source: Source) -> Iterator[None]:
    """What goes wrong inside, attempts to exit included, is raised as :func:`failure`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise failure(phase, error, record, source) from error


def _remedy(record: PluginRecord, source: Source) -> str:
    if source == "argument":
        return f"leave {record.name!r} out of plugins=[...], --plugins and --backend"
    if source == "builtin":
        return "name a plugin that fills the same seam in plugins=[...]"
    return f"deepinfer plugins disable {record.name}"


def note_plugin(error: BaseException, plugins: Iterable[tuple[PluginRecord, object]]) -> None:
    """Note on an exception in which active plugin's code it was raised, if in any: the innermost one.

    plugins: records with their components' instances, by whose methods Python objects are recognised.
    """
    packages = {record.package: record for record, _ in plugins}
    instances = {id(instance): record for record, instance in plugins}
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        record = packages.get(package) or instances.get(id(frame.f_locals.get("self")))
        if record is not None:
            note = f"in plugin {record.name!r} of {record.distribution} {record.version}".rstrip()
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            return
