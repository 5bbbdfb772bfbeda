"""JSON numbers within bounds, digit by digit."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from deepinfer_plugin_xgrammar.charset import DIGIT, CharSet
from deepinfer_plugin_xgrammar.grammar import EMPTY, NEVER, Node, Text, alt, chars, optional, repeat, seq

#: Where a schema sets no bound, integers have at most this many digits: what every reader of JSON takes exactly or
#: nearly so, and no output runs on in digits.
FREE_DIGITS: Final = 18
_MOST_DIGITS: Final = 40
#: Decimals of a bounded number beyond those of its bounds.
_MORE_DECIMALS: Final = 2

_ONE_DIGIT: Final = chars(DIGIT)


def any_number() -> Node:
    """A number without bounds."""
    first = chars(CharSet.characters("123456789"))
    whole = alt([Text("0"), seq(first, repeat(_ONE_DIGIT, 0, FREE_DIGITS - 1))])
    fraction = seq(Text("."), repeat(_ONE_DIGIT, 1, FREE_DIGITS))
    exponent = seq(chars(CharSet.characters("eE")), optional(chars(CharSet.characters("+-"))), repeat(_ONE_DIGIT, 1, 2))
    return seq(optional(Text("-")), whole, optional(fraction), optional(exponent))


def integers(low: Decimal | None, high: Decimal | None) -> Node:
    """Integers from ``low`` to ``high``."""
    free = 10**FREE_DIGITS - 1
    least = min(-free, free if high is None else math.floor(high)) if low is None else math.ceil(low)
    most = max(free, least) if high is None else math.floor(high)
    return _signed(Decimal(least), Decimal(most), 0)


def numbers(low: Decimal | None, high: Decimal | None, *, above: bool = False, below: bool = False) -> Node:
    """Numbers from ``low`` to ``high``, bounds excluded with ``above`` and ``below``; without exponents."""
    if low is None and high is None:
        return any_number()
    decimals = max(_decimals(low), _decimals(high)) + _MORE_DECIMALS
    unit = Decimal(1).scaleb(-decimals)
    free = Decimal(10) ** FREE_DIGITS - 1
    least = min(-free, free if high is None else high) if low is None else low + unit * above
    most = max(free, least) if high is None else high - unit * below
    options = (_signed(least, most, places) for places in range(decimals + 1))
    return alt(option for option in options if option != NEVER)


def _decimals(bound: Decimal | None) -> int:
    exponent = 0 if bound is None else bound.normalize().as_tuple().exponent
    assert isinstance(exponent, int), "bounds are finite"
    return max(0, -exponent)


def _signed(low: Decimal, high: Decimal, decimals: int) -> Node:
    """Numbers with exactly so many decimals, bounds rounded inwards; there is no negative zero."""
    unit = Decimal(1).scaleb(-decimals)
    below = _positive(max(unit, -high), -low, decimals) if low < 0 else NEVER
    above = _positive(max(Decimal(0), low), high, decimals) if high >= 0 else NEVER
    signed = [] if below == NEVER else [seq(Text("-"), below)]
    return alt([*signed, *([] if above == NEVER else [above])])


def _positive(low: Decimal, high: Decimal, decimals: int) -> Node:
    """Numbers >= 0 with so many decimals, shortest integer parts first."""
    scale = Decimal(10) ** decimals
    least, most = math.ceil(low * scale), math.floor(high * scale)
    if least > most:
        return NEVER
    if len(str(most)) > _MOST_DIGITS:
        raise ValueError(f"bounds of numbers must have at most {_MOST_DIGITS} digits, got {high}")
    options = []
    begin = 0
    for size in range(decimals + 1, max(decimals + 1, len(str(most))) + 1):
        end = 10**size - 1
        if max(least, begin) <= min(most, end):
            first = _pointed(str(max(least, begin)).zfill(size), decimals)
            options.append(_between(first, _pointed(str(min(most, end)).zfill(size), decimals)))
        begin = end + 1
    return alt(options)


def _pointed(digits: str, decimals: int) -> str:
    return digits if decimals == 0 else f"{digits[:-decimals]}.{digits[-decimals:]}"


def _between(low: str, high: str) -> Node:
    """Texts from ``low`` to ``high``, which have the same length and points at the same places."""
    shared = next((place for place, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    if shared == len(low):
        return Text(low)
    lower, upper = low[shared + 1 :], high[shared + 1 :]
    first, last = int(low[shared]), int(high[shared])
    options: list[Node] = []
    if lower.strip("0."):
        options.append(seq(Text(str(first)), _between(lower, _filled(lower, "9"))))
        first += 1
    tail: list[Node] = []
    if upper.strip("9."):
        tail.append(seq(Text(str(last)), _between(_filled(upper, "0"), upper)))
        last -= 1
    if first <= last:
        options.append(seq(chars(CharSet.of([(0x30 + first, 0x30 + last)])), _free(upper)))
    return seq(Text(low[:shared]), alt([*options, *tail]))


def _filled(text: str, digit: str) -> str:
    return "".join(character if character == "." else digit for character in text)


def _free(text: str) -> Node:
    """Any digits where the text has some."""
    before, point, after = text.partition(".")
    parts = [repeat(_ONE_DIGIT, len(part), len(part)) for part in (before, after) if part]
    if not point:
        return parts[0] if parts else EMPTY
    return seq(repeat(_ONE_DIGIT, len(before), len(before)) if before else EMPTY, Text("."), parts[-1])
