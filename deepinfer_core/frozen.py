"""Plain data that cannot be changed: what requests carry and plugins are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that refuses changes and can be hashed, as far as its values can. Equal to a dict of the same items."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("this mapping is frozen; make a new one with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict[K, V]], tuple[dict[K, V]]]:
        return FrozenDict, (dict(self),)


def freeze(value: object) -> Any:
    """Plain data, deeply frozen: mappings with text keys become FrozenDicts, lists tuples.

    Raises TypeError naming what is not plain data: anything but None, bools, finite numbers, text, lists and
    mappings of such. Objects and functions are none.
    """
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r}, which is not text")
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    raise TypeError(f"{value!r}")
