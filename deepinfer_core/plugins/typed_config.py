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

_SEQUENCES: Final = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS: Final = (dict, collections.abc.Mapping)


class FlagText(str):
    """A value as it was typed on a command line; its key's type says what it means."""

    __slots__ = ()


def parse_assignment(text: str) -> tuple[str, str, FlagText]:
    """``"plugin.key=value"`` in its three parts. The plugin's name may have dots itself. Raises ConfigError."""
    target, equals, value = text.partition("=")
    plugin, dot, key = target.strip().rpartition(".")
    if not (equals and dot and plugin and key.isidentifier()):
        raise ConfigError(f"plugin configuration must look like name.key=value, got {text!r}")
    return plugin, key, FlagText(value)


def parse_assignments(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Assignments by plugin and key. Raises ConfigError for a key that comes twice."""
    tables: dict[str, dict[str, Any]] = {}
    for text in texts:
        plugin, key, value = parse_assignment(text)
        if key in tables.setdefault(plugin, {}):
            raise ConfigError(f"plugin configuration {plugin}.{key} is given twice; keep one")
        tables[plugin][key] = value
    return tables


def build_config(cls: type, tables: Sequence[Mapping[str, Any]]) -> Any:
    """An object of ``cls`` from tables of keys, the first of which that has a key decides it.

    Raises ConfigError for an unknown key (with the nearest), a missing one and a value of another type; what the
    class itself raises comes through.
    """
    merged: dict[str, Any] = {}
    for table in tables:
        merged = {**table, **merged}
    return _build(cls, merged, "")


def describe_config(cls: type) -> list[dict[str, str]]:
    """One row per key: its name, type, default and help (the field's metadata ``help``)."""
    hints = typing.get_type_hints(cls)
    return [
        {
            "key": field.alias or field.name,
            "type": _type_name(hints.get(field.name, Any)),
            "default": _default_text(field),
            "help": str(field.metadata.get("help", "")),
        }
        for field in _fields(cls)
    ]


def _fields(cls: type) -> list[attrs.Attribute[Any]]:
    if not attrs.has(cls):
        raise ConfigError(f"the config class {cls!r} must be an attrs class")
    return [field for field in attrs.fields(cls) if field.init]


def _build(cls: type, table: Mapping[str, Any], where: str) -> Any:
    fields = {field.alias or field.name: field for field in _fields(cls)}
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise ConfigError(f"unknown key {where + key!r}{nearest(key, fields)} (known: {known})")
    for key, field in fields.items():
        if field.default is attrs.NOTHING and key not in table:
            raise ConfigError(f"the key {where + key!r} is missing: it has no default")
    values = {key: _convert(value, hints.get(fields[key].name, Any), where + key) for key, value in table.items()}
    return cls(**values)


def _convert(value: Any, type_: Any, key: str) -> Any:
    """``value`` as ``type_``. Raises ConfigError with the key, the type and the value."""
    try:
        return _as_type(value, type_, key)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{key} must be {_type_name(type_)}, got {value!r}") from None


def _as_type(value: Any, type_: Any, key: str) -> Any:
    origin = get_origin(type_) or type_
    if origin in (typing.Union, types.UnionType):
        return _as_any_of(value, get_args(type_), key)
    if origin is Literal:
        return _as_literal(value, get_args(type_))
    if origin in _SCALARS:
        return _SCALARS[origin](value)
    if isinstance(value, FlagText):
        value = _from_toml(value)
    if origin in _SEQUENCES:
        return _as_sequence(value, origin, get_args(type_), key)
    if origin in _MAPPINGS:
        return _as_mapping(value, get_args(type_), key)
    if isinstance(type_, type) and attrs.has(type_) and isinstance(value, Mapping):
        return _build(type_, value, f"{key}.")
    if isinstance(type_, type) and not isinstance(value, type_):
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
        if (value == choice and isinstance(value, bool) == isinstance(choice, bool)) or (
            isinstance(value, FlagText) and value == str(choice)
        ):
            return choice
    raise ValueError


def _as_sequence(value: Any, origin: Any, args: Sequence[Any], key: str) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError
    if origin is tuple and args and args[-1] is not Ellipsis:
        return tuple(_convert(item, arg, f"{key}[{i}]") for i, (item, arg) in enumerate(zip(value, args, strict=True)))
    item_type = args[0] if args else Any
    items = [_convert(item, item_type, f"{key}[{i}]") for i, item in enumerate(value)]
    return items if origin is list else tuple(items)


def _as_mapping(value: Any, args: Sequence[Any], key: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    item_type = args[1] if args else Any
    return {name: _convert(item, item_type, f"{key}.{name}") for name, item in value.items()}


def _bool(value: Any) -> bool:
    if isinstance(value, FlagText):
        return parse_bool(value)
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int(value: Any) -> int:
    if not isinstance(value, FlagText) and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError
    return int(value)


def _float(value: Any) -> float:
    if not isinstance(value, FlagText) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError
    return float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise TypeError
    return Path(value)


def _none(value: Any) -> None:
    if value is not None and not (isinstance(value, FlagText) and value.strip().lower() == "none"):
        raise TypeError


def _anything(value: Any) -> Any:
    return _from_toml(value) if isinstance(value, FlagText) else value


_SCALARS: Final[Mapping[Any, Any]] = {
    bool: _bool, int: _int, float: _float, str: _str, Path: _path, type(None): _none, Any: _anything, object: _anything,
}  # fmt: skip


def _from_toml(text: FlagText) -> Any:
    """The TOML value that ``text`` is, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return str(text)


def _type_name(type_: Any) -> str:
    if get_origin(type_) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(type_))
    if get_origin(type_) in (typing.Union, types.UnionType):
        return " or ".join(_type_name(member) for member in get_args(type_))
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
