"""Two schemas as one that takes what both take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from deepinfer_plugin_xgrammar.schema.keywords import check_keywords, restrictions

Schema = Mapping[str, Any] | bool

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


def types_of(schema: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The types that the keyword ``type`` names; all without it."""
    given = schema.get("type", TYPES)
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, tuple) or not names or any(name not in TYPES for name in names):
        raise ValueError(f"type at {where} must be one of {', '.join(TYPES)}, or a list of them, got {given!r}")
    return names


def merge(first: Schema, second: Schema, where: str) -> Schema:
    """What both take. Raises ValueError where that cannot be said in one schema."""
    if first is False or second is False:
        return False
    if first is True or not restrictions(first):
        return second
    if second is True or not restrictions(second):
        return first
    for schema in (first, second):
        check_keywords(schema, where)
    merged: dict[str, Any] = restrictions(first)
    _check_closed(first, second, where)
    _check_closed(second, first, where)
    for name, value in restrictions(second).items():
        if name not in merged or _same(merged[name], value):
            merged[name] = value
        elif name == "type":
            merged[name] = _common_types(first, second, where)
            if not merged[name]:
                return False
        elif name in _MERGERS:
            merged[name] = _MERGERS[name](merged[name], value, where)
            if name == "enum" and not merged[name]:
                return False
        else:
            raise ValueError(f"{name} at {where} is given twice, by allOf or beside $ref, with different values")
    return merged


def _same(first: Any, second: Any) -> bool:
    return json.dumps(first) == json.dumps(second)


def _common_types(first: Mapping[str, Any], second: Mapping[str, Any], where: str) -> tuple[str, ...]:
    a, b = types_of(first, where), types_of(second, where)
    common = {name for name in TYPES if name in a and name in b}
    if ("integer" in a and "number" in b) or ("number" in a and "integer" in b):
        common.add("integer")
    return tuple(name for name in TYPES if name in common)


def _check_closed(closed: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """An object that one schema closes has no properties that only the other names."""
    if closed.get("additionalProperties", True) is True:
        return
    strangers = [name for name in other.get("properties", {}) if name not in closed.get("properties", {})]
    if strangers:
        raise ValueError(
            f"at {where} one schema has additionalProperties and another the property {strangers[0]!r}; "
            "write them as one object"
        )


def _properties(first: Mapping[str, Any], second: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    merged = dict(first)
    for name, schema in second.items():
        merged[name] = merge(merged[name], schema, f"{where}/properties/{name}") if name in merged else schema
    return merged


def _members(first: Any, second: Any, where: str) -> tuple[Any, ...]:
    texts = {json.dumps(item) for item in second}
    return tuple(item for item in first if json.dumps(item) in texts)


_MERGERS: Final[Mapping[str, Callable[[Any, Any, str], Any]]] = {
    "properties": _properties,
    "required": lambda a, b, where: tuple(dict.fromkeys((*a, *b))),
    "enum": _members,
    "additionalProperties": merge,
    "items": merge,
    **dict.fromkeys(
        ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), lambda a, b, where: max(a, b)
    ),
    **dict.fromkeys(
        ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), lambda a, b, where: min(a, b)
    ),
    "uniqueItems": lambda a, b, where: a or b,
}
