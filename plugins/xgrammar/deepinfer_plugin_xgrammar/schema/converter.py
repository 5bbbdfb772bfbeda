"""The walk over a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deepinfer_plugin_xgrammar.charset import CharSet
from deepinfer_plugin_xgrammar.grammar import EMPTY, NEVER, Node, Ref, Rules, Text, alt, chars, repeat, seq
from deepinfer_plugin_xgrammar.schema import containers
from deepinfer_plugin_xgrammar.schema.keywords import OF_TYPE, check_keywords, restrictions
from deepinfer_plugin_xgrammar.schema.merge import TYPES, Schema, merge, types_of
from deepinfer_plugin_xgrammar.schema.numbers import any_number, integers, numbers
from deepinfer_plugin_xgrammar.schema.references import References
from deepinfer_plugin_xgrammar.schema.scalars import are_disjoint, bounds, check_type, count, is_of
from deepinfer_plugin_xgrammar.schema.strings import any_string, literal, string

#: Schemas visited in one request, those that references and merging repeat included.
_MOST_VISITS: Final = 20_000


def schema_rules(schema: Schema, max_whitespace: int) -> Rules:
    """The grammar of a JSON Schema's values. Raises ValueError, saying what of it and where, if it is refused."""
    converter = Converter(schema, max_whitespace)
    try:
        converter.rules.add(converter.node(schema, "#"), "root")
    except RecursionError:
        raise ValueError("it is nested too deep, or refers to itself with additions each time; simplify it") from None
    converter.rules.prune()
    return converter.rules


def json_object_rules(max_whitespace: int) -> Rules:
    """The grammar of any JSON object."""
    return schema_rules({"type": "object", "additionalProperties": True}, max_whitespace)


class Converter:
    """Makes rules of one document's schemas."""

    def __init__(self, document: Schema, max_whitespace: int) -> None:
        self.rules = Rules()
        blank = repeat(chars(CharSet.characters(" \t\n\r")), 0, max_whitespace)
        #: Whitespace between elements.
        self.blank = EMPTY if blank == EMPTY else self.rules.add(blank, "blank")
        #: What separates elements of one list.
        self.comma = seq(self.blank, Text(","), self.blank)
        self._references = References(document)
        self._rule_of: dict[str, Ref] = {}
        self._any: Ref | None = None
        self._num_visits = 0

    def node(self, schema: Any, where: str) -> Node:
        """Texts of the values that a schema takes."""
        self._num_visits += 1
        if self._num_visits > _MOST_VISITS:
            raise ValueError(f"it has more than {_MOST_VISITS} parts, repeated ones included; make it smaller")
        if schema is True:
            return self.any_value()
        if schema is False:
            return NEVER
        if not isinstance(schema, Mapping):
            raise ValueError(f"a schema must be a table, True or False, got {schema!r:.80} at {where}")
        check_keywords(schema, where)
        said = restrictions(schema)
        for name in ("$ref", "allOf", "anyOf", "oneOf"):
            if name in said:
                return self._composed(name, said.pop(name), said, where)
        if "const" in said or "enum" in said:
            return self._members(said, where)
        return self._typed(said, where)

    def any_value(self) -> Node:
        """Any JSON value."""
        if self._any is None:
            self._any = Ref(self.rules.fresh_name())
            key = self.rules.share(any_string(self.rules))
            options = [
                containers.object_of(self, [], (key, True), 0, None, "#"),
                containers.array_of(self, [], True, 0, None, "#"),
                key, self.rules.share(any_number()), Text("true"), Text("false"), Text("null"),
            ]  # fmt: skip
            self.rules.add(alt(options), self._any.name)
        return self._any

    def _composed(self, name: str, operand: Any, rest: Schema, where: str) -> Node:
        here = f"{where}/{name}"
        if name == "$ref":
            if not rest:
                return self._reference(operand, here)
            return self.node(merge(rest, self._references.inlined({"$ref": operand}, here), here), here)
        if not isinstance(operand, tuple) or not operand:
            raise ValueError(f"{here} must be a non-empty list of schemas, got {operand!r:.80}")
        if name == "allOf":
            return self._all_of(operand, rest, here)
        if rest:
            operand = tuple(merge(rest, self._references.inlined(option, here), here) for option in operand)
        if name == "oneOf" and len(operand) > 1:
            self._check_disjoint(operand, here)
        return alt(self.node(option, f"{here}/{place}") for place, option in enumerate(operand))

    def _all_of(self, schemas: Sequence[Schema], rest: Schema, where: str) -> Node:
        if len(schemas) == 1 and not rest:
            return self.node(schemas[0], f"{where}/0")
        merged = rest
        for schema in schemas:
            merged = merge(merged, self._references.inlined(schema, where), where)
        return self.node(merged, where)

    def _check_disjoint(self, options: Sequence[Schema], where: str) -> None:
        resolved = [self._references.inlined(option, where) for option in options]
        for place, option in enumerate(resolved):
            for other in resolved[:place]:
                if not are_disjoint(option, other, self._references, where):
                    raise ValueError(
                        f"{where} has options that may both take the same value, which oneOf forbids and a grammar "
                        "cannot; use anyOf, or tell them apart by type or by a required const"
                    )

    def _reference(self, pointer: Any, where: str) -> Node:
        target = self._references.resolve(pointer, where)
        if pointer not in self._rule_of:
            self._rule_of[pointer] = Ref(self.rules.fresh_name())
            self.rules.add(self.node(target, pointer), self._rule_of[pointer].name)
        return self._rule_of[pointer]

    def _members(self, said: Mapping[str, Any], where: str) -> Node:
        other = [name for name in said if name not in ("const", "enum", "type")]
        if other:
            raise ValueError(f"enum or const together with {other[0]} at {where} is not supported; leave out one")
        members = said.get("enum", (said.get("const"),))
        if not isinstance(members, tuple):
            raise ValueError(f"enum at {where} must be a list, got {members!r:.80}")
        if "const" in said:
            members = tuple(item for item in members if json.dumps(item) == json.dumps(said["const"]))
        types = types_of(said, where)
        return alt(literal(item) for item in members if any(is_of(item, name) for name in types))

    def _typed(self, said: Mapping[str, Any], where: str) -> Node:
        if "type" in said:
            names = types_of(said, where)
        else:  # keywords about one type mean values of that type
            about = [name for name, keywords in OF_TYPE.items() if name and keywords & said.keys()]
            names = tuple(about) or TYPES
        if len(names) == len(TYPES) and not (said.keys() - {"type"}):
            return self.any_value()
        kinds = [name for name in names if name != "integer" or "number" not in names]
        return alt(self._of_type(name, said, where) for name in kinds)

    def _of_type(self, name: str, said: Mapping[str, Any], where: str) -> Node:
        if name == "null":
            return Text("null")
        if name == "boolean":
            return alt([Text("true"), Text("false")])
        if name == "string":
            low, high = count(said, "minLength", where) or 0, count(said, "maxLength", where)
            pattern, format = (check_type(said, key, str, "text", where) for key in ("pattern", "format"))
            return (
                self.rules.share(string(self.rules, low, high, pattern, format))
                if high is None or low <= high
                else NEVER
            )
        if name in ("integer", "number"):
            return self.rules.share(_number(name, said, where))
        return containers.array(self, said, where) if name == "array" else containers.object(self, said, where)


def _number(name: str, said: Mapping[str, Any], where: str) -> Node:
    low, above, high, below = bounds(said, name, where)
    return integers(low, high) if name == "integer" else numbers(low, high, above=above, below=below)
