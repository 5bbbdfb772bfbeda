"""Arrays by name as bytes, for messages between processes: written with one copy, read with none, and no pickle.

A message is, all of it little-endian:

==============  =======================================================================================
4 bytes         ``b"DIC1"``
4 bytes         zero
8 bytes         length of the header
header          JSON: names to values; an array is ``{"dtype": "<i4", "shape": [3, 2]}``, a tuple a list
for each array  zeros up to a multiple of 64 bytes from the message's beginning, then its elements
==============  =======================================================================================

Where an array lies follows from the header, so none can overlap another or point outside. The message ends with the
last array, or with the header if there is none.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: What a name may stand for.
Column = NDArray[Any] | tuple[NDArray[Any], ...] | int | str | None

_MAGIC: Final = b"DIC1\0\0\0\0"
_PREFIX: Final = struct.Struct("<8sQ")
_ALIGNMENT: Final = 64
_MAX_DIMENSIONS: Final = 8
#: Elements whose bytes are plain numbers, as they are written in a header.
_DTYPES: Final = {
    np.dtype(name).str: np.dtype(name)
    for name in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
}


def pack(columns: Mapping[str, Column]) -> bytes:
    """The message. Arrays may be strided and of either byte order.

    Raises TypeError for a value, or an array's dtype, that messages do not have.
    """
    arrays: list[NDArray[Any]] = []
    header = {}
    for name, value in columns.items():
        if not isinstance(name, str):
            raise TypeError(f"names of columns must be text, got {name!r}")
        header[name] = _described(name, value, arrays)
    text = json.dumps(header, separators=(",", ":")).encode()
    parts: list[Any] = [_PREFIX.pack(_MAGIC, len(text)), text]
    size = _PREFIX.size + len(text)
    for array in arrays:
        padding = -size % _ALIGNMENT
        parts += [bytes(padding), array.reshape(-1).view(np.uint8).data]
        size += padding + array.nbytes
    return b"".join(parts)


def unpack(message: bytes | bytearray | memoryview) -> dict[str, Column]:
    """What was packed. Arrays are read-only views of the message.

    Raises ValueError for bytes that :func:`pack` does not make, whatever they are; of the padding alone, any will do.
    """
    data = memoryview(message).toreadonly()
    if not data.c_contiguous:
        raise ValueError("a message of columns must be contiguous bytes")
    data = data.cast("B")
    header, begin = _header_of(data)
    reader = _Reader(data, begin)
    columns = {name: reader.column(name, described) for name, described in header.items()}
    reader.finish()
    return columns


def _described(name: str, value: object, arrays: list[NDArray[Any]]) -> object:
    """A value's entry in the header; ``arrays`` gets the arrays in it."""
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, tuple):
        return [_described_array(name, each, arrays) for each in value]
    return _described_array(name, value, arrays)


def _described_array(name: str, value: object, arrays: list[NDArray[Any]]) -> dict[str, object]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"column {name!r} must be an array, a tuple of arrays, an int, text or None, got {value!r}")
    dtype = value.dtype.newbyteorder("<")
    if dtype.str not in _DTYPES or value.ndim > _MAX_DIMENSIONS:
        raise TypeError(
            f"column {name!r} must be numbers in at most {_MAX_DIMENSIONS} dimensions, "
            f"got {value.dtype} in {value.ndim}"
        )
    arrays.append(np.asarray(value, dtype, order="C"))
    return {"dtype": dtype.str, "shape": list(value.shape)}


def _header_of(data: memoryview) -> tuple[dict[str, Any], int]:
    """The header, and where it ends."""
    if len(data) < _PREFIX.size:
        raise ValueError(f"a message of columns has at least {_PREFIX.size} bytes, got {len(data)}")
    magic, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"a message of columns begins with {_MAGIC!r}, got {magic!r}")
    end = _PREFIX.size + length
    if end > len(data):
        raise ValueError(f"the header should end at byte {end}, but the message has {len(data)}")
    try:
        header = json.loads(str(data[_PREFIX.size : end], "utf-8"), object_pairs_hook=_without_twins)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"the header must be an object, got {type(header).__name__}")
    return header, end


def _without_twins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} comes twice")
        found[name] = value
    return found


class _Reader:
    """Takes one array after another out of a message."""

    def __init__(self, data: memoryview, begin: int) -> None:
        self._data, self._end = data, begin

    def column(self, name: str, described: object) -> Column:
        if described is None or isinstance(described, int | str):
            return described
        if isinstance(described, list):
            return tuple(self._array(name, each) for each in described)
        return self._array(name, described)

    def finish(self) -> None:
        if self._end != len(self._data):
            raise ValueError(f"the message should have {self._end} bytes, got {len(self._data)}")

    def _array(self, name: str, described: object) -> NDArray[Any]:
        dtype, shape = _layout(name, described)
        begin = self._end + -self._end % _ALIGNMENT
        self._end = begin + math.prod(shape) * dtype.itemsize
        if self._end > len(self._data):
            raise ValueError(f"column {name!r} should end at byte {self._end}, but the message has {len(self._data)}")
        array: NDArray[Any] = np.ndarray(shape, dtype, self._data, begin)
        if dtype == np.bool_ and (largest := array.view(np.uint8).max(initial=0)) > 1:
            raise ValueError(f"column {name!r} must have bytes 0 and 1, got {largest}")
        if not array.flags.aligned:  # the message lies at an odd address
            array = array.copy()
            array.flags.writeable = False
        return array


def _layout(name: str, described: object) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape of an array, from its entry in the header."""
    if not isinstance(described, dict) or described.keys() != {"dtype", "shape"}:
        raise ValueError(f"column {name!r} must be dtype and shape, a list of these, an int, text or null")
    dtype, shape = described["dtype"], described["shape"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"the dtype of column {name!r} must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"the shape of column {name!r} must have at most {_MAX_DIMENSIONS} dimensions")
    for size in shape:
        if type(size) is not int or not 0 <= size < 2**31:
            raise ValueError(f"the shape of column {name!r} must be whole numbers from 0 to 2**31 - 1, got {size!r}")
    return _DTYPES[dtype], tuple(shape)
