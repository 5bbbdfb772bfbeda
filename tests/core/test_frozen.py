"""Plain data that cannot be changed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.frozen import FrozenDict, freeze

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
plain = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


def as_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(as_tuples(item) for item in value)
    return {key: as_tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(plain)
def test_frozen_data_equals_what_it_was_made_of_can_be_hashed_and_copied(value: Any) -> None:
    frozen = freeze(value)
    assert frozen == as_tuples(value)
    assert hash(frozen) == hash(freeze(copy.deepcopy(value)))
    assert pickle.loads(pickle.dumps(frozen)) == copy.deepcopy(frozen) == frozen
    assert freeze(json.loads(json.dumps(frozen))) == frozen


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.update(a=2),
        lambda table: table.pop("a"),
        lambda table: table.popitem(),
        lambda table: table.clear(),
        lambda table: table.setdefault("b", 1),
        lambda table: table.__setitem__("a", 2),
        lambda table: table.__delitem__("a"),
        lambda table: table.__ior__({"b": 1}),
    ],
)
def test_every_way_to_change_a_frozen_dict_is_refused(change: Callable[[Any], None]) -> None:
    table = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="frozen"):
        change(table)
    assert table == {"a": 1}


@pytest.mark.parametrize("value", [object(), len, {1, 2}, {3: 4}, float("nan"), b"x", 1j, [{"a": print}]])
def test_what_is_not_plain_data_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        freeze(value)
