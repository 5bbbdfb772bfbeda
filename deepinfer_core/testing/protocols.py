"""Whether an object has what a Protocol declares, and takes what the core passes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def members(protocol: type[Any]) -> dict[str, Any]:
    """Public members that a Protocol class declares, bases included, by name: a function, a property or None."""
    classes = [cls for cls in reversed(protocol.__mro__) if getattr(cls, "_is_protocol", False)]
    names = [name for cls in classes for name in [*getattr(cls, "__annotations__", {}), *vars(cls)]]
    return {name: inspect.getattr_static(protocol, name, None) for name in names if not name.startswith("_")}


def problems(instance: object, protocol: type[Any]) -> list[str]:
    """Everything that keeps ``instance`` from being used as ``protocol``; empty for nothing."""
    return [text for name, member in members(protocol).items() for text in _problems(instance, name, member)]


def _problems(instance: object, name: str, member: object) -> Iterator[str]:
    try:
        value = getattr(instance, name)
    except AttributeError as error:
        yield f"{name} is missing ({error})"
        return
    except Exception as error:
        yield f"{name} raised {type(error).__name__}: {error}"
        return
    if not inspect.isfunction(member):
        return
    if not callable(value):
        yield f"{name} must be a method, got {value!r}"
        return
    parameters = list(inspect.signature(member).parameters.values())[1:]
    required = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is not p.empty]
    for positional, by_name in ((required, []), (required, optional), ([*required, *optional], [])):
        try:
            inspect.signature(value).bind(*positional, **dict.fromkeys(by_name))
        except TypeError as error:
            call = ", ".join([*positional, *(f"{each}=..." for each in by_name)])
            yield f"{name}({call}) must work: {error}"
            return
        except ValueError:  # native code without a signature
            return
