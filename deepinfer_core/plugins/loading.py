"""Import a selected component, give it its configuration, and check that it is what its seam asks for."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from deepinfer_core.interfaces.seams import NATIVE_ABI, SEAMS
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.failure import Source, failure
from deepinfer_core.plugins.probe import load_object

if TYPE_CHECKING:
    from deepinfer_core.plugins.configuration import Configuration
    from deepinfer_core.plugins.manifest import Component
    from deepinfer_core.plugins.selection import Selected


def load(component: Component, record: PluginRecord, source: Source, configuration: Configuration) -> Any:
    """Import a component's object; a class is called, with its configuration if it has one. Raises PluginError."""
    _check_native(record, source)
    found = import_object(component.object, record, source)
    config_class = import_object(component.config, record, source) if component.config else None
    if isinstance(found, type):
        return instantiate(found, component.name, record, source, configuration, config_class)
    if config_class is not None:
        cause = f"{component.object} must be a class to be configured, got {type(found).__name__}"
        raise failure("configure", cause, record, source)
    return found


def _check_native(record: PluginRecord, source: Source) -> None:
    for module in record.manifest.native if record.manifest else ():
        try:
            tag = getattr(importlib.import_module(module), "DEEPINFER_ABI", None)
        except (Exception, SystemExit) as error:
            raise failure("import", error, record, source) from error
        if tag != NATIVE_ABI:
            cause = f"{module} has the ABI tag {tag!r}, this core needs {NATIVE_ABI!r}; rebuild the plugin"
            raise failure("import", cause, record, source)


def import_object(path: str, record: PluginRecord, source: Source) -> Any:
    """Import ``"package.module:Object"``. Raises PluginError in phase import."""
    try:
        return load_object(path)
    except (Exception, SystemExit) as error:
        raise failure("import", error, record, source) from error


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
    try:
        if config_class is None:
            return cls()
        return cls(configuration.build(config_class, record.name, component))
    except (Exception, SystemExit) as error:
        raise failure("configure", error, record, source) from error


def check_protocol(selected: Selected) -> None:
    """Raise PluginError in phase bind when a component lacks members of its seam's protocol."""
    path = SEAMS[selected.seam].protocol
    if path is None:
        return
    missing = missing_members(selected.instance, path)
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
