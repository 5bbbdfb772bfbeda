"""From plain keys and values to the attrs class with which a component describes its configuration.

A component that can be configured is a class that is called with one object of its config class. The manifest
names that class (``config = "package.module:Config"``); a class given in Python has it as ``config_class``. The same
keys come from Python, flags, a file or the environment, and are checked against the annotations in one place.
"""

from __future__ import annotations

import collections.abc
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import attrs

from deepinfer_core.envs import parse_bool
from deepinfer_core.errors import ConfigError, nearest

_UNIONS: Final = (typing.Union, types.UnionType)
_SEQUENCES: Final = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS: Final = (dict, collections.abc.Mapping)
#: By type, what its values may be, and how they are made of these or of a flag's text.
_SCALARS: Final[Mapping[Any, tuple[Any, Any]]] = {
    bool: (bool, parse_bool), int: (int, int), float: ((int, float), float), str: (str, str), Path: ((str, Path), Path),
}  # fmt: skip


class FlagText(str):
    """A value as it was typed on a command line; its key's type says what it means."""

    __slots__ = ()


def parse_assignments(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``"plugin.key=value"``, by plugin and key. The plugin's name may have dots itself.

    Raises ConfigError for another form and for a key that comes twice.
    """
    tables: dict[str, dict[str, Any]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        plugin, dot, key = target.strip().rpartition(".")
        if not (equals and dot and plugin and key.isidentifier()):
            raise ConfigError(f"plugin configuration must look like name.key=value, got {text!r}")
        if key in tables.setdefault(plugin, {}):
            raise ConfigError(f"plugin configuration {plugin}.{key} is given twice; keep one")
        tables[plugin][key] = FlagText(value)
    return tables


def build_config(cls: type, tables: Sequence[Mapping[str, Any]]) -> Any:
    """An object of ``cls`` from tables of keys, the first of which that has a key decides it.

    Raises ConfigError for an unknown key (with the nearest), a missing one and a value of another type; what the
    class itself raises comes through.
    """
    return _build(cls, {key: value for table in reversed(tables) for key, value in table.items()}, "")


def describe_config(cls: type) -> list[dict[str, str]]:
    """One row per key: its name, type, default and help (the field's metadata ``help``)."""
    hints = typing.get_type_hints(cls)
    return [
        {
            "key": key,
            "type": _type_name(hints.get(field.name, Any)),
            "default": _default_text(field),
            "help": str(field.metadata.get("help", "")),
        }
        for key, field in _fields(cls).items()
    ]


def _fields(cls: type) -> dict[str, attrs.Attribute[Any]]:
    if not attrs.has(cls):
        raise ConfigError(f"the config class {cls!r} must be an attrs class")
    return {field.alias or field.name: field for field in attrs.fields(cls) if field.init}


def _build(cls: type, table: Mapping[str, Any], where: str) -> Any:
    fields = _fields(cls)
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise ConfigError(f"unknown key {where + key!r}{nearest(key, fields)} (known: {known})")
    for key, field in fields.items():
        if field.default is attrs.NOTHING and key not in table:
            raise ConfigError(f"the key {where + key!r} is missing: it has no default")
    return cls(**{key: _convert(value, hints.get(fields[key].name, Any), where + key) for key, value in table.items()})


def _convert(value: Any, type_: Any, key: str) -> Any:
    """``value`` as ``type_``. Raises ConfigError with the key, the type and the value."""
    try:
        return _as_type(value, type_, key)
    except ConfigError:
        raise
    except (TypeError, ValueError):
        raise ConfigError(f"{key} must be {_type_name(type_)}, got {value!r}") from None


def _as_type(value: Any, type_: Any, key: str) -> Any:
    origin, args = get_origin(type_) or type_, get_args(type_)
    if origin in _UNIONS:
        return _as_any_of(value, args, key)
    if origin is Literal:
        return _as_literal(value, args)
    if origin in _SCALARS:
        return _as_scalar(value, origin)
    if isinstance(value, FlagText):
        value = None if type_ is type(None) and value.strip().lower() == "none" else _from_toml(value)
    if origin in _SEQUENCES and isinstance(value, list | tuple):
        return _as_sequence(value, origin, args, key)
    if origin in _MAPPINGS and isinstance(value, Mapping):
        return {name: _convert(item, args[1] if args else Any, f"{key}.{name}") for name, item in value.items()}
    if isinstance(origin, type) and attrs.has(origin) and isinstance(value, Mapping):
        return _build(origin, value, f"{key}.")
    if origin is not Any and isinstance(origin, type) and not isinstance(value, origin):
        raise TypeError
    return value


def _as_any_of(value: Any, members: Sequence[Any], key: str) -> Any:
    # A number before text, so that what a flag says is a number where it can be one.
    for member in sorted(members, key=lambda member: member in (str, Path)):
        try:
            return _as_type(value, member, key)
        except (TypeError, ValueError):
            continue
    raise TypeError


def _as_literal(value: Any, choices: Sequence[Any]) -> Any:
    for choice in choices:
        is_equal = value == choice and isinstance(value, bool) == isinstance(choice, bool)
        if is_equal or (isinstance(value, FlagText) and value == str(choice)):
            return choice
    raise ValueError


def _as_scalar(value: Any, type_: Any) -> Any:
    accepted, read = _SCALARS[type_]
    if isinstance(value, FlagText):
        return read(value)
    if not isinstance(value, accepted) or isinstance(value, bool) != (type_ is bool):
        raise TypeError
    return type_(value)


def _as_sequence(value: Sequence[Any], origin: Any, args: Sequence[Any], key: str) -> Any:
    types = [args[0] if args else Any] * len(value)
    if origin is tuple and args and args[-1] is not Ellipsis:
        types = list(args)
    items = [_convert(item, type_, f"{key}[{i}]") for i, (item, type_) in enumerate(zip(value, types, strict=True))]
    return items if origin is list else tuple(items)


def _from_toml(text: FlagText) -> Any:
    """The TOML value that ``text`` is, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return str(text)


def _type_name(type_: Any) -> str:
    if get_origin(type_) is Literal:
        return "one of " + ", ".join(map(repr, get_args(type_)))
    if get_origin(type_) in _UNIONS:
        return " or ".join(map(_type_name, get_args(type_)))
    if type_ is type(None):
        return "None"
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_).replace("typing.", "")


def _default_text(field: attrs.Attribute[Any]) -> str:
    default: Any = field.default
    if default is attrs.NOTHING:
        return "required"
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return "computed" if default.takes_self else repr(default.factory())
    return repr(default)
