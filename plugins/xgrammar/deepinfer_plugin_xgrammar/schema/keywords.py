"""What JSON Schema keywords are known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deepinfer_core.errors import nearest

#: Keywords that are obeyed, by the types of value that they are about; "" is about all.
_BY_TYPE: Final = {
    "": ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
    ),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
OF_TYPE: Final = {key: frozenset(names) for key, names in _BY_TYPE.items()}
OBEYED: Final = frozenset(name for names in _BY_TYPE.values() for name in names)

#: Keywords that restrict values in ways that a grammar here cannot follow: refused, not ignored.
REFUSED: Final = frozenset(
    (
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames", "dependencies",
        "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
        "$recursiveRef", "extends", "disallow", "divisibleBy",
    )
)  # fmt: skip

#: Keywords that say nothing about values.
IGNORED: Final = frozenset(
    (
        "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema",
        "$id", "id", "$comment", "$anchor", "$vocabulary", "$defs", "definitions", "contentEncoding",
        "contentMediaType", "contentSchema",
        "discriminator", "externalDocs", "xml", "nullable", "strict", "name",
    )
)  # fmt: skip


def check_keywords(schema: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for a keyword that cannot be followed, or that looks like another one misspelt."""
    for name in schema:
        if name in REFUSED:
            raise ValueError(f"{name} at {where} is not supported; write the schema without it")
        if name not in OBEYED and name not in IGNORED and (near := nearest(name, OBEYED)):
            raise ValueError(f"{where} has the unknown keyword {name!r}{near}")


def restrictions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that say something about values."""
    return {name: value for name, value in schema.items() if name in OBEYED}
