"""Arrays and objects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deepinfer_plugin_xgrammar.grammar import NEVER, Node, Text, alt, optional, repeat, seq
from deepinfer_plugin_xgrammar.patterns import Pattern
from deepinfer_plugin_xgrammar.schema.merge import Schema, merge
from deepinfer_plugin_xgrammar.schema.scalars import check_type, count
from deepinfer_plugin_xgrammar.schema.strings import character_of, literal, name_other_than, quoted

if TYPE_CHECKING:
    from deepinfer_plugin_xgrammar.schema.converter import Converter


def array(converter: Converter, said: Mapping[str, Any], where: str) -> Node:
    """Arrays; those with ``prefixItems`` have no further items unless ``items`` or ``minItems`` asks for them."""
    items = said.get("items")
    given = items if isinstance(items, tuple) else said.get("prefixItems", ())
    if not isinstance(given, tuple):
        raise ValueError(f"prefixItems at {where} must be a list of schemas, got {given!r:.80}")
    low, high = count(said, "minItems", where) or 0, count(said, "maxItems", where)
    rest = said.get("additionalItems") if isinstance(items, tuple) else items
    if rest is None:
        rest = not given or low > len(given)
    if check_type(said, "uniqueItems", bool, "true or false", where) and (high is None or high > 1):
        raise ValueError(f"uniqueItems at {where} is not supported; write the schema without it")
    return array_of(converter, given, rest, low, high, where)


def array_of(converter: Converter, prefix: Sequence[Any], rest: Any, low: int, high: int | None, where: str) -> Node:
    """An array of ``low`` to ``high`` items: those of ``prefix``, then any number of ``rest``."""
    if high is not None:
        prefix = prefix[:high]
        if low > high:
            return NEVER
    more = NEVER if rest is False else converter.rules.add(converter.node(rest, f"{where}/items"))
    room = None if high is None else high - len(prefix)
    following: Node = NEVER
    if more != NEVER:
        following = repeat(seq(converter.comma, more), max(0, low - len(prefix)), room)
    elif low <= len(prefix):
        following = Text("")
    parts = [converter.rules.add(converter.node(s, f"{where}/prefixItems/{i}")) for i, s in enumerate(prefix)]
    body: Node = NEVER
    if parts:
        for place in range(len(parts) - 1, 0, -1):
            step = seq(converter.comma, parts[place], following)
            following = step if place < low else optional(step)
        body = seq(parts[0], following)
    elif more != NEVER and high != 0:
        body = seq(more, repeat(seq(converter.comma, more), max(0, low - 1), None if high is None else high - 1))
    return _enclosed(converter, "[", body, "]", may_be_empty=low == 0)


def object(converter: Converter, said: Mapping[str, Any], where: str) -> Node:
    """Objects: properties in the schema's order; others only if ``additionalProperties`` or a pattern allows them."""
    properties = check_type(said, "properties", Mapping, "a table of schemas", where) or {}
    required = check_type(said, "required", tuple, "a list of names", where) or ()
    patterns = check_type(said, "patternProperties", Mapping, "a table of schemas", where) or {}
    others = said.get("additionalProperties")
    schemas = dict(properties)
    for name in required:
        if not isinstance(name, str):
            raise ValueError(f"required at {where} must be a list of names, got {name!r:.80}")
        schemas.setdefault(name, True if others is None else others)
    matched = [pattern for pattern in patterns for name in schemas if _matches(pattern, name, where)]
    for pattern in dict.fromkeys(matched):
        for name in schemas:
            if _matches(pattern, name, where):
                schemas[name] = merge(schemas[name], patterns[pattern], f"{where}/properties/{name}")
    entries = [(literal(name), schemas[name], name in required) for name in schemas]
    extra = _extra(converter, schemas, patterns, others, matched)
    low, high = count(said, "minProperties", where) or 0, count(said, "maxProperties", where)
    return object_of(converter, entries, extra, low, high, where)


def _matches(pattern: str, name: str, where: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise ValueError(f"patternProperties at {where} has the bad pattern {pattern!r:.80}: {error}") from None


def _extra(
    converter: Converter, schemas: Mapping[str, Any], patterns: Mapping[str, Any], others: Any, matched: Sequence[str]
) -> tuple[Node, Schema] | None:
    """Names and values of properties that the schema does not name; None where there are none."""
    if len(patterns) == 1:
        ((pattern, schema),) = patterns.items()
        if not matched:
            return converter.rules.add(quoted(Pattern(pattern, character_of).somewhere())), schema
    if patterns or others is None or others is False:
        return None
    return converter.rules.add(name_other_than(frozenset(schemas))), others


def object_of(
    converter: Converter,
    entries: Sequence[tuple[Node, Any, bool]],
    extra: tuple[Node, Any] | None,
    low: int,
    high: int | None,
    where: str,
) -> Node:
    """An object of ``low`` to ``high`` properties.

    entries: ``(name, schema, whether it is required)`` in order. extra: a name and a schema for any number of others.
    """
    needed = sum(is_required for _, _, is_required in entries)
    spare = low - needed
    kept = []
    room = None if high is None else high - needed
    for name, schema, is_required in entries:
        if not is_required and spare > 0:
            is_required, spare = True, spare - 1
            room = None if room is None else room - 1
        elif not is_required and room is not None:
            room -= 1
            if room < 0:
                continue
        kept.append((name, schema, is_required))
    if (high is not None and (needed > high or low > high)) or (spare > 0 and extra is None):
        return NEVER
    if spare > 1:
        raise ValueError(
            f"minProperties at {where} is more than one above the named properties, which is not supported"
        )
    members = [(_member(converter, name, schema, where), is_required) for name, schema, is_required in kept]
    other = None if extra is None or (room is not None and room <= 0) else _member(converter, *extra, where)
    body = _members(converter, members, other, max(spare, 0), room)
    return _enclosed(converter, "{", body, "}", may_be_empty=low == 0 and needed == 0)


def _member(converter: Converter, name: Node, schema: Any, where: str) -> Node:
    value = converter.node(schema, f"{where}/properties/{name.text[1:-1]}" if isinstance(name, Text) else where)
    return converter.rules.add(seq(name, converter.blank, Text(":"), converter.blank, value))


def _members(
    converter: Converter, members: Sequence[tuple[Node, bool]], other: Node | None, low: int, room: int | None
) -> Node:
    """At least one of the members, in order, required ones always; then ``low`` to ``room`` others."""
    following: Node = Text("")
    begin: Node = NEVER
    if other is not None:
        following = repeat(seq(converter.comma, other), low, room)
        begin = seq(other, repeat(seq(converter.comma, other), max(0, low - 1), None if room is None else room - 1))
    elif low > 0:
        following = NEVER
    for member, is_required in reversed(members):
        rest = converter.rules.add(following) if not isinstance(following, Text) else following
        begin = seq(member, rest) if is_required else alt([seq(member, rest), _named(converter, begin)])
        step = seq(converter.comma, member)
        following = seq(step if is_required else optional(step), rest)
    return begin


def _named(converter: Converter, node: Node) -> Node:
    return node if node == NEVER else converter.rules.add(node)


def _enclosed(converter: Converter, left: str, body: Node, right: str, *, may_be_empty: bool) -> Node:
    options = [seq(Text(left), converter.blank, Text(right))] if may_be_empty else []
    options.append(seq(Text(left), converter.blank, body, converter.blank, Text(right)))
    return converter.rules.add(alt(options))
