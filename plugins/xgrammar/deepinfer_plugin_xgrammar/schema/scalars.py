"""Keywords with a number or a text, and what tells two schemas apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from deepinfer_plugin_xgrammar.schema.merge import Schema, types_of
from deepinfer_plugin_xgrammar.schema.references import References


def check_type(said: Mapping[str, Any], name: str, type_: type, rule: str, where: str) -> Any:
    """A keyword's value, or None without it. Raises ValueError for a value of another type."""
    value = said.get(name)
    if value is not None and not isinstance(value, type_):
        raise ValueError(f"{name} at {where} must be {rule}, got {value!r:.80}")
    return value


def count(said: Mapping[str, Any], name: str, where: str) -> int | None:
    """A keyword that counts something."""
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise ValueError(f"{name} at {where} must be an integer >= 0, got {value!r:.80}")
    return int(value)


def bounds(said: Mapping[str, Any], type_name: str, where: str) -> tuple[Decimal | None, bool, Decimal | None, bool]:
    """``(low, whether it is excluded, high, whether it is excluded)`` of numbers; integers' are never excluded."""
    low, above = _bound(said, "minimum", "exclusiveMinimum", max, where)
    high, below = _bound(said, "maximum", "exclusiveMaximum", min, where)
    multiple = _number(said, "multipleOf", where)
    if multiple is not None and not (type_name == "integer" and multiple == 1):
        raise ValueError(f"multipleOf at {where} is not supported; write the schema without it")
    if type_name == "integer":
        if above and low is not None and low == low.to_integral_value():
            low, above = low + 1, False
        if below and high is not None and high == high.to_integral_value():
            high, below = high - 1, False
    return low, above, high, below


def _bound(said: Mapping[str, Any], name: str, exclusive: str, tighter: Any, where: str) -> tuple[Decimal | None, bool]:
    inside = _number(said, name, where)
    if isinstance(said.get(exclusive), bool):  # as it was in draft 4
        return inside, said[exclusive] and inside is not None
    outside = _number(said, exclusive, where)
    if inside is None or outside is None:
        return (inside, False) if outside is None else (outside, True)
    return (outside, True) if tighter(inside, outside) == outside else (inside, False)


def _number(said: Mapping[str, Any], name: str, where: str) -> Decimal | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} at {where} must be a number, got {value!r:.80}")
    return Decimal(repr(value))


def is_of(value: Any, type_name: str) -> bool:
    """Whether a JSON value has a type of JSON Schema."""
    if isinstance(value, bool):
        return type_name == "boolean"
    if type_name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    python = {"null": type(None), "number": int | float, "string": str, "array": tuple, "object": Mapping}
    return type_name in python and isinstance(value, python[type_name])


def are_disjoint(first: Schema, second: Schema, references: References, where: str, depth: int = 3) -> bool:
    """Whether it is certain that no value is taken by both."""
    if first is False or second is False:
        return True
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return False
    a, b = _value_types(first, where), _value_types(second, where)
    if not a & b:
        return True
    members, others = _members(first), _members(second)
    if members is not None and others is not None:
        return not members & others
    if a & b != {"object"} or depth == 0:
        return False
    required = {*first.get("required", ())} & {*second.get("required", ())}
    named = [(first.get("properties", {}).get(name), second.get("properties", {}).get(name)) for name in required]
    return any(
        are_disjoint(references.inlined(x, where), references.inlined(y, where), references, where, depth - 1)
        for x, y in named
        if x is not None and y is not None
    )


def _value_types(schema: Mapping[str, Any], where: str) -> set[str]:
    members = _member_values(schema)
    types = set(types_of(schema, where))
    if members is not None:
        types = {name for name in types if any(is_of(item, name) for item in members)}
    return types | ({"integer"} if "number" in types else set())


def _member_values(schema: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    members = schema.get("enum")
    return members if isinstance(members, tuple) else None


def _members(schema: Mapping[str, Any]) -> set[str] | None:
    values = _member_values(schema)
    return None if values is None else {json.dumps(item) for item in values}
