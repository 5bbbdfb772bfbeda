"""The order within a seam is total, independent of the order of discovery, and obeys before and after."""

from __future__ import annotations

import random

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins.ordering import order


@frozen
class Item:
    name: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.name})

    @property
    def tie(self) -> tuple[object, ...]:
        return (self.name,)

    @property
    def owner(self) -> str:
        return f"owner of {self.name}"


@st.composite
def acyclic(draw: st.DrawFn) -> list[Item]:
    """Items with constraints that some hidden order satisfies, plus names that are not installed."""
    names = draw(st.permutations([f"p{i}" for i in range(draw(st.integers(0, 8)))]))
    items = []
    for i, name in enumerate(names):
        later = draw(st.lists(st.sampled_from([*names[i + 1 :], "absent"]), max_size=3))
        earlier = draw(st.lists(st.sampled_from([*names[:i], "absent"]), max_size=3))
        items.append(Item(name, tuple(later), tuple(earlier)))
    return items


@given(acyclic(), st.randoms(use_true_random=False))
def test_order_obeys_every_constraint_and_ignores_the_input_order(items: list[Item], rng: random.Random) -> None:
    result = order(items)
    place = {item.name: i for i, item in enumerate(result)}
    assert sorted(place) == sorted(item.name for item in items)
    for item in items:
        assert all(place[item.name] < place[other] for other in item.before if other in place)
        assert all(place[item.name] > place[other] for other in item.after if other in place)
    shuffled = items[:]
    rng.shuffle(shuffled)
    assert order(shuffled) == result


def test_a_cycle_names_those_in_it_only() -> None:
    items = [Item("a", ("b",)), Item("b", ("c",)), Item("c", ("a",)), Item("free")]
    with pytest.raises(PluginError) as caught:
        order(items)
    assert all(f"owner of {name}" in str(caught.value) for name in "abc")
    assert "free" not in str(caught.value)
