"""Import a selected component, give it its configuration, and check that it is what its seam asks for."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import NATIVE_ABI, SEAMS
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.failure import Source, failing, failure
from deepinfer_core.plugins.probe import load_object

if TYPE_CHECKING:
    from deepinfer_core.plugins.selection import Selected
    from deepinfer_core.plugins.settings import Configuration


def load(selected: Selected, configuration: Configuration) -> Any:
    """Import a component's object; a class is called, with its configuration if it has one. Raises PluginError."""
    component, record, source = selected.component, selected.record, selected.source
    with failing("import", record, source):
        for module in record.manifest.native if record.manifest else ():
            _check_native(module)
        found = load_object(component.object)
        config_class: Any = load_object(component.config) if component.config else None
    if isinstance(found, type):
        return instantiate(found, component.name, record, source, configuration, config_class)
    if config_class is not None:
        cause = f"{component.object} must be a class to be configured, got {type(found).__name__}"
        raise failure("configure", cause, record, source)
    return found


def _check_native(module: str) -> None:
    tag = getattr(importlib.import_module(module), "DEEPINFER_ABI", None)
    if tag != NATIVE_ABI:
        raise PluginError(f"{module} has the ABI tag {tag!r}, this core needs {NATIVE_ABI!r}; rebuild the plugin")


def instantiate(
    cls: type,
    component: str,
    record: PluginRecord,
    source: Source,
    configuration: Configuration,
    config_class: type | None = None,
) -> object:
    """Call a class with its configuration, or without arguments if it has none. Raises PluginError (configure).

    config_class: None for what the class names as ``config_class``, if anything.
    """
    config_class = config_class or getattr(cls, "config_class", None)
    with failing("configure", record, source):
        if config_class is None:
            return cls()
        return cls(configuration.build(config_class, record.name, component))


def check_protocol(selected: Selected) -> None:
    """Raise PluginError in phase bind when a component lacks members of its seam's protocol."""
    path = SEAMS[selected.seam].protocol
    missing = missing_members(selected.instance, path) if path else []
    if missing:
        cause = f"{selected.name!r} lacks {', '.join(missing)} of {path}"
        raise failure("bind", cause, selected.record, selected.source)


def missing_members(instance: object, protocol: str) -> list[str]:
    """Names that a protocol, given as ``"module:Protocol"``, declares and ``instance`` lacks."""
    return [name for name in protocol_members(load_object(protocol)) if not _has(instance, name)]


def _has(instance: object, name: str) -> bool:
    # Looked up without running properties: a backend's device would import torch.
    absent = object()
    return inspect.getattr_static(instance, name, absent) is not absent or hasattr(instance, name)


def protocol_members(protocol: Any) -> list[str]:
    """Public attributes and methods a Protocol class declares, bases included, in order."""
    classes = [cls for cls in reversed(protocol.__mro__) if getattr(cls, "_is_protocol", False)]
    names = [name for cls in classes for name in [*getattr(cls, "__annotations__", {}), *vars(cls)]]
    return list(dict.fromkeys(name for name in names if not name.startswith("_")))
