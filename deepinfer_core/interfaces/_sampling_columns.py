"""Which columns a ``SamplingBatch`` has, and what its methods need to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Columns of one number per row, and their types.
SCALARS: Final[Mapping[str, type]] = {
    "temperature": np.float64,
    "top_k": np.int32,
    "top_p": np.float64,
    "min_p": np.float64,
    "seed": np.uint64,
    "position": np.int64,
    "num_logprobs": np.int32,
    "processed_logprobs": np.bool_,
    "forced": np.int32,
}
#: Columns of one list of ids per row, and the types of what goes with the ids.
LISTS: Final[Mapping[str, tuple[type, ...]]] = {
    "bias": (np.float32,),
    "seen": (np.int32,),
    "allowed": (),
    "banned": (),
}
_OPTIONAL: Final = ("forced", "penalties", *LISTS, "masks", "proposed")


def places_of(rows: ArrayLike) -> NDArray[np.intp]:
    """Rows as integers, from integers or from a bool for each."""
    given = np.asarray(rows)
    return np.flatnonzero(given) if given.dtype == np.bool_ else given.astype(np.intp)


def needed_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Those that some row needs."""
    needed = {name: column for name, column in columns.items() if name not in LISTS or len(column[1])}
    if "seen" not in needed:
        needed.pop("penalties", None)
    numbers: dict[str, NDArray[np.int32]] = {}
    if "forced" in needed:
        numbers["forced"] = needed["forced"]
    if "masks" in needed:
        numbers["masks"], _ = needed["masks"]
    if "proposed" in needed:
        numbers["proposed"] = needed["proposed"].tokens
    return {name: column for name, column in needed.items() if name not in numbers or (numbers[name] >= 0).any()}


def selected_lists(lists: tuple[NDArray[Any], ...], rows: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
    """``(offsets, ids, ...)`` of these rows, end to end."""
    offsets, *values = lists
    sizes = np.diff(offsets)[rows]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    places = np.repeat(offsets[:-1][rows] - bounds[:-1], sizes) + np.arange(bounds[-1])
    return bounds, *(each[places] for each in values)


def check_columns(given: Mapping[str, object]) -> None:
    """Raises ValueError where columns by name are not those of a batch, or do not fit together."""
    required = SCALARS.keys() - _OPTIONAL
    if not required <= given.keys() <= {*SCALARS, *_OPTIONAL}:
        raise ValueError(f"a batch has the columns {sorted(required)} and any of {sorted(_OPTIONAL)}, got {[*given]}")
    position = given["position"]
    rows = position.size if isinstance(position, np.ndarray) else 0
    for name, dtype in SCALARS.items():
        if name in given:
            _check_array(name, given[name], dtype, rows)
    if ("seen" in given) != ("penalties" in given):
        raise ValueError("seen and penalties go together")
    if "penalties" in given:
        _check_array("penalties", given["penalties"], np.float64, rows, 3)
    for name, types in LISTS.items():
        if name in given:
            _check_lists(name, given[name], rows, np.int32, *types)
    if "masks" in given:
        _check_masks(given["masks"], rows)
    if "proposed" in given:
        tokens, *lists = _parts("proposed", given["proposed"], 4)
        _check_array("proposed", tokens, np.int32, rows)
        _check_lists("proposed", tuple(lists), rows, np.int32, np.float64)


def _parts(name: str, value: object, count: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != count:
        raise ValueError(f"{name} must be {count} arrays")
    return value


def _check_array(name: str, value: object, dtype: type, *shape: int) -> None:
    if isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype:
        return
    found = f"{list(value.shape)} {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ValueError(f"{name} must be {[*shape]} {np.dtype(dtype).name}, got {found}")


def _check_lists(name: str, value: object, rows: int, *types: type) -> None:
    offsets, *values = _parts(name, value, 1 + len(types))
    _check_array(f"offsets of {name}", offsets, np.int64, rows + 1)
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets of {name} must begin with 0 and never fall")
    for each, dtype in zip(values, types, strict=True):
        _check_array(f"lists of {name}", each, dtype, int(offsets[-1]))


def _check_masks(value: object, rows: int) -> None:
    which, words = _parts("masks", value, 2)
    _check_array("masks", which, np.int32, rows)
    if words.ndim != 2 or words.dtype != np.int32:
        raise ValueError(f"words of masks must be [M, W] int32, got {list(words.shape)} {words.dtype}")
    if rows and not -1 <= which.min() <= which.max() < len(words):
        raise ValueError(f"masks must be numbers below {len(words)} or -1, got {which.min()} to {which.max()}")
