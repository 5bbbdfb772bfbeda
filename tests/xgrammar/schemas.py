"""Random JSON Schemas and patterns of what is supported."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ["a", "b", "id", "né", 'q"', "東", "a b", "back\\slash"]
_VALUES = [None, True, False, 0, -7, 12.5, "x", "東", 'q"\\\n', "é", "e\u0301", "😀", [1, "a"], {"k": [None]}]
_PATTERNS = ["ab", "^ab", "ab$", "^a|b$", "^[a-c]{1,4}$", "[^a-z]", r"\d\d", r"^\w+$", "^(x|yz)*$", "^.$", r"\S"]
_FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"]


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of at most ``depth`` levels of containers."""
    makers = [_string, _string, _integer, _number, _enum, _plain]
    if depth:
        makers += [_object, _object, _object, _array, _array, _any_of, _all_of]
    return rng.choice(makers)(rng, depth)


def _plain(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["null", "boolean", "integer", "number", "string", ["string", "null"]])}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    low = rng.randrange(4)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(5)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.choice([-1000, -17, -1, 0, 1, 9, 99, 12345])
    bounds = {rng.choice(["minimum", "exclusiveMinimum"]): low}
    if rng.random() < 0.7:
        bounds[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([2, 3, 10, 95, 1000, 10**6])
    return {"type": "integer", **bounds}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.choice([-3.75, -0.5, 0, 0.1, 2.5, 99.99])
    bounds = {rng.choice(["minimum", "exclusiveMinimum"]): low}
    if rng.random() < 0.7:
        bounds[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([0.25, 1, 7.125, 1000])
    return {"type": "number", **bounds}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {"const": rng.choice(_VALUES)}
    return {"enum": rng.sample(_VALUES, rng.randint(1, 5))}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(0, 4))
    found: dict[str, Any] = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names}}
    if names and rng.random() < 0.7:
        found["required"] = rng.sample(names, rng.randint(1, len(names)))
    kind = rng.randrange(5)
    if kind == 0:
        found["additionalProperties"] = schema(rng, 0)
    elif kind == 1:
        found["additionalProperties"] = False
    elif kind == 2 and names:
        found["minProperties"] = rng.randint(0, len(names))
        found["maxProperties"] = len(names)
    elif kind == 3:
        found["patternProperties"] = {"^[xyz]+$": schema(rng, 0)}
    return found


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "array", "items": schema(rng, depth - 1)}
    if rng.random() < 0.3:
        found["prefixItems"] = [schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.3:
        del found["items"]
    low = rng.randrange(3)
    return found | {"minItems": low, "maxItems": low + rng.randrange(3)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _all_of(rng: random.Random, depth: int) -> dict[str, Any]:
    first = {"type": "object", "properties": {"a": {"type": "integer"}, "c": schema(rng, depth - 1)}}
    second = {"properties": {"a": {"minimum": 3, "maximum": 50}, "d": schema(rng, 0)}, "required": ["a"]}
    return {"allOf": [first, second]}


def pattern(rng: random.Random, depth: int = 3) -> str:
    """A regular expression without anything unbounded."""
    kind = rng.randrange(6 if depth else 2)
    if kind == 0:
        return rng.choice(["a", "b", "é", "東", r"\.", r"\\", " ", "\\n"])
    if kind == 1:
        return rng.choice(["[a-f]", "[^a-z]", r"\d", r"\w", r"\s", r"\D", r"\W", ".", r"[\d_-]", r"[^\s\d]"])
    if kind == 2:
        return f"(?:{pattern(rng, depth - 1)})" + rng.choice(["?", "{2}", "{0,3}", "{1,2}?"])
    if kind == 3:
        return f"({pattern(rng, depth - 1)}|{pattern(rng, depth - 1)})"
    return pattern(rng, depth - 1) + pattern(rng, depth - 1)
