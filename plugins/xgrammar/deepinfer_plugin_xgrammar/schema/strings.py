"""JSON strings: every character as JSON writes it, never raw where JSON forbids it."""

from __future__ import annotations

import json
from typing import Final

from deepinfer_plugin_xgrammar.charset import ANY, CharSet
from deepinfer_plugin_xgrammar.grammar import Node, Ref, Rules, Text, alt, chars, repeat, seq
from deepinfer_plugin_xgrammar.patterns import Pattern

_CONTROL: Final = CharSet.of([(0, 0x1F)])
_ESCAPED: Final = _CONTROL | CharSet.characters('"\\')
_REST: Final = "string_rest"
#: Characters that stand for themselves inside quotes.
PLAIN: Final = ANY - _ESCAPED

_HEX: Final = chars(CharSet.of([(0x30, 0x39), (0x41, 0x46), (0x61, 0x66)]))
# Four digits, without the surrogates that begin with d8 to df: they are no characters of their own.
_UNICODE_ESCAPE: Final = alt(
    [
        seq(chars(CharSet.characters("0123456789abcefABCEF")), _HEX, _HEX, _HEX),
        seq(chars(CharSet.characters("dD")), chars(CharSet.characters("01234567")), _HEX, _HEX),
    ]
)
_ESCAPE: Final = alt([chars(CharSet.characters('"\\/bfnrt')), seq(Text("u"), _UNICODE_ESCAPE)])
_QUOTE: Final = Text('"')

#: Strings of a bounded length have escapes up to this length. Each character then is a rule of its own, whose tokens
#: are worked out beforehand; counted in a repetition, escapes would make every mask a search of the vocabulary.
MAX_ESCAPED_LENGTH: Final = 64

#: What formats look like. Other formats are annotations, as JSON Schema has it.
_DATE: Final = (
    r"\d{4}-(((0[13578]|1[02])-(0[1-9]|[12]\d|3[01]))|((0[469]|11)-(0[1-9]|[12]\d|30))|(02-(0[1-9]|1\d|2[0-8])))"
)
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_BYTE: Final = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(\d{1,4}W|\d{1,4}D(T\d{1,4}H)?|T\d{1,4}[HMS])",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+",
    "hostname": r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){0,3}",
    "uri": r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.-]+(/[A-Za-z0-9._~-]*)*",
}


def character_of(which: CharSet) -> Node:
    """One character of a set: as itself where JSON allows it, else by its shortest escape."""
    escaped = which & _ESCAPED
    codes = [code for low, high in escaped.ranges for code in range(low, high + 1)]
    plain = which - _ESCAPED
    options = [*([chars(plain)] if plain else []), *(Text(json.dumps(chr(code))[1:-1]) for code in codes)]
    return alt(options)


def literal(value: object) -> Node:
    """A JSON value, spelled one way."""
    return Text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def quoted(content: Node) -> Node:
    """A string with this content."""
    return seq(Text('"'), content, Text('"'))


def string(rules: Rules, low: int, high: int | None, pattern: str | None, format: str | None) -> Node:
    """A string of ``low`` to ``high`` characters, with a match of a pattern somewhere, or of a known format.

    Raises ValueError for combinations that are not supported.
    """
    if pattern is not None and format in FORMATS:
        raise ValueError(f"pattern {pattern!r} together with format {format!r} is not supported; leave out one")
    if pattern is not None:
        parsed = Pattern(pattern, character_of)
        return quoted(parsed.somewhere() if (low, high) == (0, None) else parsed.of_length(low, high))
    if format in FORMATS:
        parsed = Pattern(f"^{FORMATS[format]}$", character_of)
        return quoted(parsed.whole() if (low, high) == (0, None) else parsed.of_length(low, high))
    return _of_length(rules, low, high)


def any_string(rules: Rules) -> Node:
    """Any string."""
    return seq(_QUOTE, _rest(rules))


def _rest(rules: Rules) -> Ref:
    """The rest of any string, its closing quote included."""
    if _REST not in rules.rules:
        rules.add(alt([_QUOTE, *_character_then(rules, Ref(_REST))]), _REST)
    return Ref(_REST)


def _character_then(rules: Rules, rest: Node) -> list[Node]:
    return [seq(chars(PLAIN), rest), seq(Text("\\"), rules.share(_ESCAPE), rest)]


def _of_length(rules: Rules, low: int, high: int | None) -> Node:
    if max(low, high or 0) > MAX_ESCAPED_LENGTH:
        body = repeat(chars(PLAIN), low, low if high is None else high)
        return seq(_QUOTE, body, _rest(rules) if high is None else _QUOTE)
    rest: Node = _rest(rules) if high is None else _QUOTE
    for place in range((low if high is None else high) - 1, -1, -1):
        ends = [_QUOTE] if place >= low else []
        rest = rules.share(alt([*ends, *_character_then(rules, rest)]))
    return seq(_QUOTE, rest)


def name_other_than(names: frozenset[str]) -> Node:
    """A property's name that is none of ``names``; without escapes, so that there is one spelling of each."""
    return quoted(_other_than(frozenset(name for name in names if all(ord(c) in PLAIN for c in name))))


def _other_than(names: frozenset[str]) -> Node:
    heads = sorted({name[0] for name in names if name})
    free = chars(PLAIN - CharSet.characters(heads))
    options = [seq(free, repeat(chars(PLAIN), 0, None))]
    options += [seq(Text(head), _other_than(frozenset(n[1:] for n in names if n[:1] == head))) for head in heads]
    if "" not in names:
        options.append(Text(""))
    return alt(options)
