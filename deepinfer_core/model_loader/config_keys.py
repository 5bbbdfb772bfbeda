"""Reading a Hugging Face config: several spellings of a key, several places, strict types.

A field of a config class says where its value comes from (:func:`key`); :class:`Scope` finds it. Two
spellings that disagree are an error, and so is a value of the wrong type: ``true`` is not ``1``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from deepinfer_core.errors import ConfigError, nearest

logger = logging.getLogger(__name__)

T = TypeVar("T")
Check = Callable[[Any], bool]
#: What :meth:`Scope.find` gives for an absent key.
MISSING = object()


@attrs.frozen
class Rule:
    """A condition on a value and the words that describe it in an error."""

    words: str
    holds: Check


positive = Rule("at least 1", lambda value: value >= 1)
not_negative = Rule("at least 0", lambda value: value >= 0)
above_zero = Rule("greater than 0", lambda value: value > 0)
even = Rule("even and at least 2", lambda value: value >= 2 and value % 2 == 0)


def multiple_of(step: int) -> Rule:
    """A positive multiple of ``step``."""
    return Rule(f"a positive multiple of {step}", lambda value: value > 0 and value % step == 0)


def from_one_to(limit: int) -> Rule:
    """A count of what is enumerated one by one at start-up: a mistyped one is refused, not waited for."""
    return Rule(f"from 1 to {limit}", lambda value: 1 <= value <= limit)


def an_integer(value: object) -> int:
    """An int, not a bool and not a float."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError("an integer")


def a_number(value: object) -> float:
    """A finite float; an int counts."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise TypeError("a finite number")


def a_bool(value: object) -> bool:
    """True or false; nothing else counts."""
    if isinstance(value, bool):
        return value
    raise TypeError("true or false")


def integers(value: object) -> tuple[int, ...]:
    """A list of integers."""
    if isinstance(value, list | tuple):
        try:
            return tuple(an_integer(item) for item in value)
        except TypeError:
            pass
    raise TypeError("a list of integers")


def one_or_more_integers(value: object) -> tuple[int, ...]:
    """An integer, a list of integers, or null for none."""
    if value is None:
        return ()
    return integers(value) if isinstance(value, list | tuple) else (an_integer(value),)


def or_none(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """``read``, or None for null."""
    return lambda value: None if value is None else read(value)


def a_source(value: object) -> int | None:
    """A layer number; null or -1 mean that there is none."""
    number = None if value is None else an_integer(value)
    return None if number == -1 else number


def key(read: Callable[[object], Any], *names: str, rule: Rule | None = None, default: object = attrs.NOTHING) -> Any:
    """An attrs field read from the first of ``names`` (published spelling first) by ``read``."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if rule is not None and value is not None and not rule.holds(value):
            raise ConfigError(f"{names[0]} must be {rule.words}, got {value!r}")

    return attrs.field(default=default, validator=validate, metadata={"read": read, "names": names})


class Scope:
    """Keys of one part of a config: an ordered list of (label, mapping), and which keys were used."""

    def __init__(self, *places: tuple[str, Mapping[str, Any]]) -> None:
        self.places = places
        self.used: set[str] = set()
        self.known: set[str] = set()

    def find(self, *names: str) -> tuple[str, Any]:
        """``(full key, value)`` under any of ``names``; value is :data:`MISSING` when absent.

        Raises ConfigError when two spellings or two places give different values.
        """
        self.known.update(names)
        found = [(f"{label}{n}", p[n]) for label, p in self.places for n in names if n in p]
        self.used.update(names)
        for full, value in found[1:]:
            if value != found[0][1]:
                raise ConfigError(
                    f"config contradicts itself: {found[0][0]} is {found[0][1]!r} but {full} is {value!r}; "
                    "they name the same setting, so keep one"
                )
        return found[0] if found else (names[0], MISSING)

    def get(self, read: Callable[[object], T], *names: str, default: Any = attrs.NOTHING) -> T:
        """The value under any of ``names``, converted; ConfigError when it is missing or mistyped."""
        full, value = self.find(*names)
        if value is MISSING:
            if default is attrs.NOTHING:
                raise ConfigError(f"config has no {full}; it is required (other spelling: {_others(names)})")
            return default  # type: ignore[no-any-return]
        try:
            return read(value)
        except TypeError as error:
            raise ConfigError(f"{full} must be {error}, got {value!r}") from None

    def has(self, *names: str) -> bool:
        """Whether any spelling is present and not null."""
        return self.find(*names)[1] not in (MISSING, None)

    def values(self, cls: type[Any]) -> dict[str, Any]:
        """Values of those fields of an attrs class that were made by :func:`key`."""
        fields = [field for field in attrs.fields(cls) if field.metadata]
        return {f.name: self.get(f.metadata["read"], *f.metadata["names"], default=f.default) for f in fields}

    def build(self, cls: type[T]) -> T:
        """An instance of an attrs class whose fields were all made by :func:`key`."""
        return cls(**self.values(cls))

    def build_if(self, wanted: bool, cls: type[T]) -> T | None:
        """:meth:`build`, or None; the keys of an unwanted part count as known."""
        if wanted:
            return self.build(cls)
        self.used.update(name for field in attrs.fields(cls) for name in field.metadata["names"])  # type: ignore[arg-type]
        return None

    def require(self, name: str, *allowed: object) -> None:
        """Refuse a key whose value is not one of ``allowed``; an absent key is fine."""
        full, value = self.find(name)
        if value is not MISSING and value not in allowed:
            options = " or ".join(repr(option) for option in allowed)
            raise ConfigError(f"{full} must be {options} for this architecture, got {value!r}")

    def unknown(self, ignorable: frozenset[str]) -> list[str]:
        """Keys nobody asked for, each with the nearest known name."""
        return [
            f"{label}{name}{nearest(name, self.known)}"
            for label, place in self.places
            for name in place
            if name not in self.used and name not in ignorable
        ]


def part_of(config: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The nested part ``name`` as a labelled place of a :class:`Scope`; none when absent or null."""
    part = config.get(name)
    if part is None:
        return []
    if not isinstance(part, Mapping):
        raise ConfigError(f"{name} must be a table, got {part!r}")
    return [(f"{name}.", part)]


def warn_unknown(unknown: list[str]) -> None:
    """One warning for all keys that nobody asked for."""
    if unknown:
        logger.warning("config.json has keys that are not used: %s", ", ".join(unknown))


def _others(names: tuple[str, ...]) -> str:
    return ", ".join(names[1:]) or "none"
