"""What a request may ask of the form of its output. Plain data, checked on construction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import attrs

from deepinfer_core.errors import RequestError, nearest
from deepinfer_core.frozen import FrozenDict, freeze

#: The fields of :class:`StructuredOutput` of which a request gives one.
KINDS: Final = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")

#: Levels of lists and tables in a schema or a structural tag.
MAX_DEPTH: Final = 200

#: Whitespace characters in a row, between the elements of JSON, where a request says nothing.
DEFAULT_WHITESPACE: Final = 8
_MOST_WHITESPACE: Final = 64


def _refuse(name: str, rule: str, value: object) -> RequestError:
    return RequestError(f"structured: {name} must be {rule}, got {value!r:.200}")


def _plain(name: str, rule: str, value: object) -> Any:
    """JSON text or plain data as frozen plain data."""
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"structured: {name} is not valid JSON: {error}") from None
    _check_depth(name, value)
    try:
        frozen = freeze(value)
    except TypeError as error:
        raise RequestError(f"structured: {name} must be {rule}, got {error!s:.200}") from None
    _check_unicode(name, json.dumps(frozen, ensure_ascii=False))
    return frozen


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _check_depth(name: str, value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for part in level for item in _items(part)]
        if not level:
            return
    raise RequestError(f"structured: {name} must be nested at most {MAX_DEPTH} levels deep; use $ref for what recurs")


def _items(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _json_schema(value: object) -> FrozenDict[str, Any] | bool | None:
    rule = "a JSON Schema: a table, or JSON text of one"
    frozen = None if value is None else _plain("json_schema", rule, value)
    if frozen is None or isinstance(frozen, FrozenDict | bool):
        return frozen
    raise _refuse("json_schema", rule, value)


def _structural_tag(value: object) -> FrozenDict[str, Any] | None:
    rule = "a table, or JSON text of one"
    frozen = None if value is None else _plain("structural_tag", rule, value)
    if frozen is None or isinstance(frozen, FrozenDict):
        return frozen
    raise _refuse("structural_tag", rule, value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse("json_object", "True or False", value)
    return value


def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _refuse(name, "text", value)
    _check_unicode(name, value)
    return value


# Each a function of its own: type checkers learn from it what the field accepts.
def _regex(value: object) -> str | None:
    return _text("regex", value)


def _ebnf(value: object) -> str | None:
    return _text("ebnf", value)


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"structured: {name} must be valid Unicode, got {text[error.start]!a}") from None


def _choice(value: object) -> tuple[str, ...] | None:
    rule = "a non-empty list of non-empty texts"
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) and item for item in value):
        raise _refuse("choice", rule, value)
    for item in value:
        _check_unicode("choice", item)
    return tuple(dict.fromkeys(value))


def _whitespace(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_WHITESPACE:
        raise _refuse("max_whitespace", f"an integer in [0, {_MOST_WHITESPACE}]", value)
    return value


@attrs.frozen(kw_only=True)
class StructuredOutput:
    """The form of an output: exactly one of the kinds, the first six fields. Immutable, hashable, plain data.

    Raises RequestError, naming the field, the rule and the value; an unknown field names its nearest relative.

    json_schema: a JSON Schema, as a table or as JSON text. Objects have no properties but those that the schema names,
        unless ``additionalProperties`` says otherwise, and in its order.
    json_object: True: any JSON object.
    regex: the whole output matches it; anchors are implied.
    ebnf: a grammar whose first rule is ``root``.
    choice: the output is one of these texts.
    structural_tag: free text until a trigger, then constrained: a table or JSON text in the format
        ``{"type": "structural_tag", "format": ...}``.
    max_whitespace: most whitespace characters in a row between the elements of JSON, not inside strings; 0 is compact.

    An output that is whole and cannot go on ends with finish reason ``stop``, whatever ``min_tokens``; where it may end
    or go on, an end-of-sequence token ends it. ``stop`` strings and ``stop_token_ids`` cut it as ever, and so does a
    limit (``length``).
    """

    json_schema: FrozenDict[str, Any] | bool | None = attrs.field(default=None, converter=_json_schema)
    json_object: bool = attrs.field(default=False, converter=_flag)
    regex: str | None = attrs.field(default=None, converter=_regex)
    ebnf: str | None = attrs.field(default=None, converter=_ebnf)
    choice: tuple[str, ...] | None = attrs.field(default=None, converter=_choice)
    structural_tag: FrozenDict[str, Any] | None = attrs.field(default=None, converter=_structural_tag)
    max_whitespace: int = attrs.field(default=DEFAULT_WHITESPACE, converter=_whitespace)

    def __new__(cls, *args: object, **fields: object) -> Self:
        """Refuse unknown names before the generated ``__init__`` would, with the nearest known one."""
        known = [field.name for field in attrs.fields(StructuredOutput)]
        for name in fields:
            if name not in known:
                raise RequestError(
                    f"structured has no field {name!r}{nearest(name, known)} (known: {', '.join(known)})"
                )
        return super().__new__(cls)

    def __attrs_post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(f"structured must have exactly one of {', '.join(KINDS)}, got {found}")

    def _given(self) -> list[str]:
        # A schema may be the boolean False, which is not the flag's.
        return [
            name for name in KINDS if getattr(self, name) is not None and (name != "json_object" or self.json_object)
        ]

    @classmethod
    def of(cls, value: object) -> Self | None:
        """None, one of these, or one made from a table. Raises RequestError."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls(**{str(name): item for name, item in value.items()})
        rule = f"None, a StructuredOutput or a table with one of {', '.join(KINDS)}"
        raise RequestError(f"structured must be {rule}, got {value!r:.200}")

    @property
    def kind(self) -> str:
        """Which of the kinds it is."""
        return self._given()[0]

    @property
    def key(self) -> str:
        """What is compiled, as text: equal for equal contents, order included, and only for those."""
        return json.dumps([self.kind, getattr(self, self.kind), self.max_whitespace], ensure_ascii=False)
