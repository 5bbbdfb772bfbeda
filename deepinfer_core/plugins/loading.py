"""Import a selected component and check that it is what its seam asks for."""

from __future__ import annotations

import inspect
from typing import Any

from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.failure import Source, failure
from deepinfer_core.plugins.probe import load_object
from deepinfer_core.plugins.selection import Selected, instantiate


def load(path: str, record: PluginRecord, source: Source) -> Any:
    """Import ``"package.module:Object"``; a class is called without arguments. Raises PluginError."""
    try:
        found = load_object(path)
    except (Exception, SystemExit) as error:
        raise failure("import", error, record, source) from error
    return instantiate(found, record, source) if isinstance(found, type) else found


def check_protocol(selected: Selected) -> None:
    """Raise PluginError in phase bind when a component lacks members of its seam's protocol."""
    path = SEAMS[selected.seam].protocol
    if path is None:
        return
    missing = [name for name in _members(load_object(path)) if not _has(selected.instance, name)]
    if missing:
        cause = f"{selected.name!r} lacks {', '.join(missing)} of {path}"
        raise failure("bind", cause, selected.record, selected.source)


def _has(instance: object, name: str) -> bool:
    # Looked up without running properties: a backend's device would import torch.
    absent = object()
    return inspect.getattr_static(instance, name, absent) is not absent or hasattr(instance, name)


def _members(protocol: Any) -> list[str]:
    """Public attributes and methods a Protocol class declares, bases included, in order."""
    classes = [cls for cls in reversed(protocol.__mro__) if getattr(cls, "_is_protocol", False)]
    names = [name for cls in classes for name in [*getattr(cls, "__annotations__", {}), *vars(cls)]]
    return list(dict.fromkeys(name for name in names if not name.startswith("_")))
