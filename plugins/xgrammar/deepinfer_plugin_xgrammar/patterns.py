"""Regular expressions as grammars. Python's ``re`` reads them, so they mean what they mean there.

Where Python's rules and ECMAScript's differ about a character, no output has it: both then agree that it matches.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final, TypeAlias

import attrs

from deepinfer_plugin_xgrammar.charset import ANY, DIGIT, NO_LINE_END, NOTHING, SPACE, WORD, CharSet, outside
from deepinfer_plugin_xgrammar.grammar import EMPTY, Node, alt, chars, repeat, seq

#: An operation of the parsed pattern: its code and its operand.
Op: TypeAlias = tuple[Any, Any]

_CATEGORIES: Final = {
    sre.CATEGORY_DIGIT: DIGIT,
    sre.CATEGORY_WORD: WORD,
    sre.CATEGORY_SPACE: SPACE,
}
_COMPLEMENTS: Final = {
    sre.CATEGORY_NOT_DIGIT: "digit",
    sre.CATEGORY_NOT_WORD: "word",
    sre.CATEGORY_NOT_SPACE: "space",
}
_STARTS: Final = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_ENDS: Final = (sre.AT_END, sre.AT_END_STRING)
_UNSUPPORTED: Final = {
    sre.ASSERT: "lookahead and lookbehind",
    sre.ASSERT_NOT: "lookahead and lookbehind",
    sre.GROUPREF: "references to groups",
    sre.GROUPREF_EXISTS: "conditional groups",
    sre.ATOMIC_GROUP: "atomic groups",
    sre.POSSESSIVE_REPEAT: "possessive repeats",
}
_FLAGS: Final = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.ASCII | re.LOCALE


@attrs.frozen
class Pattern:
    """A parsed pattern. Raises ValueError for one that is bad or has what is not supported.

    one: what becomes of one character of a set.
    """

    source: str
    one: Callable[[CharSet], Node] = chars
    _ops: tuple[Op, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # JavaScript's spelling of a named group.
        text = re.sub(r"(?<!\\)\(\?<(?![=!])", "(?P<", self.source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = _parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{_shown(self.source)} is no regular expression: {error}") from None
        if parsed.state.flags & _FLAGS:
            raise self._unsupported("flags")
        object.__setattr__(self, "_ops", _ops(parsed))

    def whole(self) -> Node:
        """Texts that match from beginning to end."""
        return self._anchored(self._ops, lambda body, starts, ends: self._sequence(body))

    def somewhere(self) -> Node:
        """Texts with a match in them; anchors hold it to the beginning or the end."""
        anything = repeat(self.one(ANY), 0, None)

        def place(body: Sequence[Op], starts: bool, ends: bool) -> Node:
            return seq(EMPTY if starts else anything, self._sequence(body), EMPTY if ends else anything)

        return self._anchored(self._ops, place)

    def of_length(self, low: int, high: int | None) -> Node:
        """:meth:`somewhere`, with ``low`` to ``high`` characters. Raises ValueError where that is not supported."""
        body, starts, ends = _without_anchors(self._ops)
        if starts and ends:
            least, most = _width(body)
            if low <= least and (high is None or (most is not None and most <= high)):
                return self._sequence(body)
            if len(body) == 1 and body[0][0] in (sre.MAX_REPEAT, sre.MIN_REPEAT) and len(body[0][1][2]) == 1:
                least, most, (item,) = body[0][1]
                which = self._set(item)
                if which is not None:
                    low, high = max(low, least), _least(high, None if most is sre.MAXREPEAT else int(most))
                    if high is not None and low > high:
                        raise ValueError(
                            f"no match of {_shown(self.source)} has the length that minLength and maxLength ask"
                        )
                    return repeat(self.one(which), low, high)
        raise ValueError(
            f"pattern {_shown(self.source)} together with minLength or maxLength is not supported; say the length in "
            "the pattern, like ^[a-z]{1,8}$"
        )

    def _anchored(self, ops: Sequence[Op], place: Callable[[Sequence[Op], bool, bool], Node]) -> Node:
        """Each alternative placed by its anchors."""
        if len(ops) == 1:
            code, operand = ops[0]
            if code is sre.BRANCH:
                return alt(self._anchored(_ops(option), place) for option in operand[1])
            if code is sre.SUBPATTERN:
                return self._anchored(self._group(operand), place)
        return place(*_without_anchors(ops))

    def _sequence(self, ops: Sequence[Op]) -> Node:
        return seq(*(self._node(op) for op in ops))

    def _node(self, op: Op) -> Node:
        code, operand = op
        which = self._set(op)
        if which is not None:
            return self.one(which)
        if code is sre.BRANCH:
            return alt(self._sequence(_ops(option)) for option in operand[1])
        if code is sre.SUBPATTERN:
            return self._sequence(self._group(operand))
        if code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, body = operand
            return repeat(self._sequence(_ops(body)), int(low), None if high is sre.MAXREPEAT else int(high))
        if code is sre.AT:
            where = "^ and $ other than at the ends" if operand in (*_STARTS, *_ENDS) else "word boundaries"
            raise self._unsupported(where)
        raise self._unsupported(_UNSUPPORTED.get(code, str(code).lower()))

    def _group(self, operand: Any) -> tuple[Op, ...]:
        _, added, removed, body = operand
        if added or removed:
            raise self._unsupported("flags")
        return _ops(body)

    def _set(self, op: Op) -> CharSet | None:
        """The characters that an operation takes, if it takes exactly one."""
        code, operand = op
        if code is sre.LITERAL:
            return CharSet.of([(operand, operand)])
        if code is sre.NOT_LITERAL:
            return ~CharSet.of([(operand, operand)])
        if code is sre.ANY:
            return NO_LINE_END
        if code is sre.IN:
            return self._class(operand)
        return None

    def _class(self, items: Sequence[Op]) -> CharSet:
        is_negated = items[0][0] is sre.NEGATE
        found = NOTHING
        for code, operand in items[is_negated:]:
            if code is sre.LITERAL:
                found |= CharSet.of([(operand, operand)])
            elif code is sre.RANGE:
                found |= CharSet.of([operand])
            elif operand in _CATEGORIES:
                # Left out of a complement is what either set of rules counts among the category.
                found |= ~outside(_NAMES[operand]) if is_negated else _CATEGORIES[operand]
            elif is_negated:
                found |= ~_CATEGORIES[_POSITIVE[operand]]
            else:
                found |= outside(_COMPLEMENTS[operand])
        return ~found if is_negated else found

    def _unsupported(self, what: str) -> ValueError:
        return ValueError(f"{what} in {_shown(self.source)} are not supported; write the pattern without")


_NAMES: Final = dict(zip(_CATEGORIES, _COMPLEMENTS.values(), strict=True))
_POSITIVE: Final = dict(zip(_COMPLEMENTS, _CATEGORIES, strict=True))


def _ops(parsed: Any) -> tuple[Op, ...]:
    return tuple(parsed.data)


def _without_anchors(ops: Sequence[Op]) -> tuple[Sequence[Op], bool, bool]:
    """The operations between the anchors at both ends, and whether there are any."""
    begin, end = 0, len(ops)
    while begin < end and ops[begin][0] is sre.AT and ops[begin][1] in _STARTS:
        begin += 1
    while end > begin and ops[end - 1][0] is sre.AT and ops[end - 1][1] in _ENDS:
        end -= 1
    return ops[begin:end], begin > 0, end < len(ops)


def _width(ops: Sequence[Op]) -> tuple[int, int | None]:
    """Least and greatest length of a match, in characters."""
    low, high = _parser.SubPattern(_parser.State(), list(ops)).getwidth()
    return int(low), None if high >= int(sre.MAXREPEAT) else int(high)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _shown(source: str) -> str:
    return repr(source if len(source) <= 80 else source[:77] + "...")
