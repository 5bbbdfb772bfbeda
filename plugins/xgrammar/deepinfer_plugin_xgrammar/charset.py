"""Sets of characters as sorted, disjoint ranges of code points."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Final, Self

import attrs

Range = tuple[int, int]

#: UTF-8 has no surrogates.
_SURROGATES: Final = (0xD800, 0xDFFF)


@attrs.frozen
class CharSet:
    """Inclusive ranges, ascending, with gaps between them."""

    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> Self:
        """From ranges in any order, overlapping or not; surrogates are left out."""
        merged: list[Range] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], high)
            else:
                merged.append((low, high))
        return cls(tuple(_without(merged, _SURROGATES)))

    @classmethod
    def characters(cls, characters: Iterable[str]) -> Self:
        """Of these characters."""
        return cls.of((ord(character), ord(character)) for character in characters)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, code: int) -> bool:
        return any(low <= code <= high for low, high in self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of((*self.ranges, *other.ranges))

    def __and__(self, other: CharSet) -> CharSet:
        return ~(~self | ~other)

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        gaps, begin = [], 0
        for low, high in self.ranges:
            if begin < low:
                gaps.append((begin, low - 1))
            begin = high + 1
        if begin <= sys.maxunicode:
            gaps.append((begin, sys.maxunicode))
        return CharSet.of(gaps)

    @property
    def single(self) -> int | None:
        """The code point, if there is but one."""
        (low, high), *others = self.ranges or ((0, 1),)
        return low if low == high and not others else None


def _without(ranges: Iterable[Range], hole: Range) -> Iterable[Range]:
    for low, high in ranges:
        if low < hole[0]:
            yield low, min(high, hole[0] - 1)
        if high > hole[1]:
            yield max(low, hole[1] + 1), high


ANY: Final = CharSet.of([(0, sys.maxunicode)])
NOTHING: Final = CharSet(())
DIGIT: Final = CharSet.of([(0x30, 0x39)])
WORD: Final = DIGIT | CharSet.of([(0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE: Final = CharSet.characters(" \t\n\r\f\v")
#: What ``.`` matches whichever rules about line ends are taken.
NO_LINE_END: Final = ~CharSet.characters("\n\r\u2028\u2029")


@cache
def outside(kind: str) -> CharSet:
    """Characters that are no digit, word character or space by ASCII's and by Unicode's rules alike."""
    test = {"digit": str.isdecimal, "word": lambda c: c.isalnum() or c == "_", "space": str.isspace}[kind]
    inside = (code for code in range(sys.maxunicode + 1) if test(chr(code)))
    also = {"digit": DIGIT, "word": WORD, "space": SPACE | CharSet.characters("\ufeff")}[kind]
    return ~(CharSet.of((code, code) for code in inside) | also)
