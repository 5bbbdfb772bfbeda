"""Arrays by name as bytes and back; and bytes that nobody packed."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepinfer_core.columns import pack, unpack

dtypes = st.sampled_from(["?", "i1", "u1", "<i2", ">u2", "<i4", ">i4", "<u4", "<i8", "<u8", "<f2", "<f4", ">f8"])
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))
values = st.one_of(
    st.none(), st.integers(), st.text(), arrays, arrays.map(np.transpose), st.lists(arrays, max_size=4).map(tuple)
)
mappings = st.dictionaries(st.text(max_size=8), values, max_size=6)


def flat(columns: dict[str, Any]) -> list[Any]:
    return [each for value in columns.values() for each in (value if isinstance(value, tuple) else [value])]


def equal(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return type(one) is type(other) and one == other
    same = one.dtype == other.dtype.newbyteorder(one.dtype.byteorder) and one.shape == other.shape
    return same and bool(np.array_equal(one.astype(other.dtype), other, equal_nan=one.dtype.kind == "f"))


@given(mappings)
def test_what_is_unpacked_is_what_was_packed(columns: dict[str, Any]) -> None:
    message = pack(columns)
    found = unpack(message)
    assert list(found) == list(columns)
    for name, value in columns.items():
        assert isinstance(found[name], tuple) == isinstance(value, tuple)
    assert all(equal(one, other) for one, other in zip(flat(columns), flat(found), strict=True))
    assert pack(found) == message
    raw = np.frombuffer(message, np.uint8)
    for array in filter(lambda each: isinstance(each, np.ndarray), flat(found)):
        assert not array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative
        if array.size:
            assert np.shares_memory(array, raw), "elements were copied"
            assert (array.__array_interface__["data"][0] - raw.__array_interface__["data"][0]) % 64 == 0


def test_messages_that_lie_at_odd_addresses_are_read_too() -> None:
    message = pack({"a": np.arange(5), "b": np.arange(3, dtype=np.int8)})
    moved = bytearray(1) + message
    found: Any = unpack(memoryview(moved)[1:])
    assert found["a"].tolist() == [0, 1, 2, 3, 4] and found["a"].flags.aligned and not found["a"].flags.writeable
    assert found["b"].tolist() == [0, 1, 2]
    assert [*unpack(bytearray(message))] == ["a", "b"]


def test_truth_values_are_kept() -> None:
    assert unpack(pack({"a": True, "b": np.array([True, False])}))["a"] is True


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": 1.5}, "column 'a' must be an array, a tuple of arrays, an int, text or None, got 1.5"),
        ({"a": [1]}, "column 'a' must be an array"),
        ({"a": (1,)}, "column 'a' must be an array"),
        ({"a": np.array([None])}, "column 'a' must be numbers in at most 8 dimensions, got object in 1"),
        ({"a": np.array(["x"])}, "got <U1 in 1"),
        ({"a": np.zeros(1, np.complex64)}, "got complex64 in 1"),
        ({"a": np.zeros([1] * 9)}, "got float64 in 9"),
        ({1: 1}, "names of columns must be text, got 1"),
    ],
)
def test_what_messages_do_not_have_is_refused(columns: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pack(columns)


# -- hostile bytes


def with_header(header: object, rest: bytes = b"") -> bytes:
    """A message with any header, and what follows it at the next multiple of 64."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    message = struct.pack("<8sQ", b"DIC1\0\0\0\0", len(text)) + text
    return message + (bytes(-len(message) % 64) + rest if rest else b"")


GOOD = {"dtype": "<i4", "shape": [2]}


def test_the_helper_makes_good_messages() -> None:
    found: Any = unpack(with_header({"a": GOOD, "b": [GOOD]}, bytes([1, 0, 0, 0, 2, 0, 0, 0]) + bytes(56) + bytes(8)))
    assert found["a"].tolist() == [1, 2] and found["b"][0].tolist() == [0, 0]
    assert unpack(with_header({})) == {}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "at least 16 bytes, got 0"),
        (b"DIC1" + bytes(11), "at least 16 bytes, got 15"),
        (b"DIC2" + bytes(12), "begins with"),
        (struct.pack("<8sQ", b"DIC1\0\0\0\0", 2**64 - 1), "the header should end at byte 18446744073709551631"),
        (with_header(b""), "the header cannot be read"),
        (with_header(b"\xff{}"), "the header cannot be read"),
        (with_header(b"{"), "the header cannot be read"),
        (with_header(b"[" * 200_000), "the header is nested too deeply"),
        (with_header(b'{"a": ' + b"9" * 5000 + b"}"), "the header cannot be read"),
        (with_header(b'{"a": 1, "a": 2}'), "'a' comes twice"),
        (with_header(b'{"a": NaN}'), "column 'a' must be dtype and shape"),
        (with_header([]), "the header must be an object, got list"),
        (with_header({"a": 1.5}), "column 'a' must be dtype and shape"),
        (with_header({"a": {}}), "column 'a' must be dtype and shape"),
        (with_header({"a": {**GOOD, "strides": [4]}}), "column 'a' must be dtype and shape"),
        (with_header({"a": [[GOOD]]}), "column 'a' must be dtype and shape"),
        (with_header({"a": [1]}), "column 'a' must be dtype and shape"),
        (with_header({"a": {"dtype": "|O", "shape": [1]}}, bytes(8)), "the dtype of column 'a' must be one of"),
        (with_header({"a": {"dtype": ">i4", "shape": [1]}}, bytes(4)), "got '>i4'"),
        (with_header({"a": {"dtype": ["<i4"], "shape": [1]}}, bytes(4)), "the dtype of column 'a'"),
        (with_header({"a": {"dtype": "<i4", "shape": 1}}, bytes(4)), "the shape of column 'a'"),
        (with_header({"a": {"dtype": "<i4", "shape": [-1]}}, bytes(4)), "from 0 to 2.*got -1"),
        (with_header({"a": {"dtype": "<i4", "shape": [True]}}, bytes(4)), "got True"),
        (with_header({"a": {"dtype": "<i4", "shape": [1.0]}}, bytes(4)), r"got 1\.0"),
        (with_header({"a": {"dtype": "<i4", "shape": [2**64]}}, bytes(4)), "got 18446744073709551616"),
        (with_header({"a": {"dtype": "<i4", "shape": [2**30] * 8}}, bytes(4)), "should end at byte"),
        (with_header({"a": {"dtype": "<i4", "shape": [1] * 9}}, bytes(4)), "at most 8 dimensions"),
        (with_header({"a": GOOD}), "column 'a' should end at byte 72, but the message has"),
        (with_header({"a": GOOD}, bytes(7)), "should end at byte"),
        (with_header({"a": GOOD}, bytes(9)), "the message should have 72 bytes, got 73"),
        (with_header({"a": 1}) + b"x", "the message should have"),
        (with_header({"a": {"dtype": "|b1", "shape": [2]}}, b"\1\2"), "column 'a' must have bytes 0 and 1, got 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_that_nobody_packed_are_refused(message: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpack(message)


def test_shapes_without_elements_may_be_large_otherwise() -> None:
    try:
        found: Any = unpack(with_header({"a": {"dtype": "<i4", "shape": [0, *[2**31 - 1] * 7]}}))
    except ValueError:
        return  # numpy's own limit
    assert found["a"].size == 0


def test_memory_with_gaps_is_refused() -> None:
    message = np.repeat(np.frombuffer(pack({"a": 1}), np.uint8), 2)
    with pytest.raises(ValueError, match="must be contiguous"):
        unpack(message.data[::2])


TWO = np.zeros((2, 2), np.float32), np.ones(3, np.bool_)
ANY = pack({"a": np.arange(3), "b": TWO, "c": "text", "d": 5, "e": None})
damages = st.lists(st.tuples(st.integers(0, len(ANY) - 1), st.integers(0, 255)), min_size=1, max_size=4)


@given(st.binary(max_size=300))
@example(ANY[:-1])
def test_any_bytes_are_refused_or_read(message: bytes) -> None:
    read_or_refused(message)
    read_or_refused(ANY[:16] + message)
    read_or_refused(with_header(message))


@given(damages, st.integers(0, 99))
def test_damaged_messages_are_refused_or_read(damage: list[tuple[int, int]], cut: int) -> None:
    message = bytearray(ANY)
    for place, value in damage:
        message[place] = value
    read_or_refused(bytes(message))
    read_or_refused(bytes(message[: len(message) - cut]))


def read_or_refused(message: bytes) -> None:
    """Nothing but ValueError comes of it, and what is read can be used."""
    try:
        found = unpack(message)
    except ValueError as error:
        assert str(error)
        return
    for each in flat(found):
        assert not isinstance(each, np.ndarray) or each.nbytes <= len(message)
    assert unpack(pack(found)).keys() == found.keys()
