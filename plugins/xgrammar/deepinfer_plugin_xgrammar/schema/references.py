"""``$ref`` within a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from deepinfer_plugin_xgrammar.schema.keywords import restrictions
from deepinfer_plugin_xgrammar.schema.merge import Schema, merge


class References:
    """Schemas of a document by JSON pointer (RFC 6901)."""

    def __init__(self, document: Schema) -> None:
        self._document = document

    def resolve(self, pointer: Any, where: str) -> Any:
        """What ``#`` or ``#/a/0/b`` points to. Raises ValueError for anything else and for what is not there."""
        if not isinstance(pointer, str) or (pointer != "#" and not pointer.startswith("#/")):
            raise ValueError(f"{where} must point into the same schema, like #/$defs/name, got {pointer!r:.80}")
        found: Any = self._document
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, tuple) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise ValueError(f"{where} points to {pointer!r:.80}, and there is no {key!r:.80}")
        return found

    def inlined(self, schema: Schema, where: str, seen: frozenset[str] = frozenset()) -> Schema:
        """The schema without ``$ref`` and ``allOf`` at its top. Raises ValueError for one that needs itself."""
        if not isinstance(schema, Mapping):
            if not isinstance(schema, bool):
                raise ValueError(f"a schema must be a table, True or False, got {schema!r:.80} at {where}")
            return schema
        rest = restrictions(schema)
        parts = list(rest.pop("allOf", ()))
        if "$ref" in rest:
            pointer = rest.pop("$ref")
            target = self.resolve(pointer, where)
            if pointer in seen:
                raise ValueError(f"{where} refers to {pointer!r:.80}, which is made of itself")
            seen |= {pointer}
            parts.append(target)
        elif not parts:
            return schema
        merged: Schema = rest
        for part in parts:
            merged = merge(merged, self.inlined(part, where, seen), where)
        return merged
