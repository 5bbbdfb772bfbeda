"""The order within a seam is total, independent of the order of discovery, and obeys before and after."""

from __future__ import annotations

import random
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import PluginError
from deepinfer_core.hookspecs import hookimpl
from deepinfer_core.plugins.selection import order


@frozen
class Item:
    name: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def component(self) -> Item:
        return self

    @property
    def record(self) -> Item:
        return self

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


# -- within the manager

CHAINED, EXCLUSIVE = "kv_connector", "moe"


def test_a_chain_is_ordered_by_before_and_after_then_by_distribution(install: Any, manager: Any, thing: Any) -> None:
    install("a", CHAINED, thing(CHAINED, "a"), distribution="z-last")
    install("b", CHAINED, thing(CHAINED, "b"), distribution="a-first", extra='after = ["c"]')
    install("c", CHAINED, thing(CHAINED, "c"), distribution="m-middle")
    for names in (("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")):
        assert [p.label for p in manager(*names).chain(CHAINED)] == ["c", "b", "a"]
    assert [p.label for p in manager("b", env="a", file='plugins = ["c"]').chain(CHAINED)] == ["c", "b", "a"]


def test_contradicting_orders_name_their_owners(install: Any, manager: Any) -> None:
    install("a", CHAINED, extra='before = ["b"]')
    install("b", CHAINED, extra='before = ["a"]')
    with pytest.raises(PluginError, match=r"contradict each other: 'a' \(dist-a 1.0\), 'b' \(dist-b 1.0\)"):
        manager("a", "b")


@pytest.mark.parametrize("sources", [{}, {"file": 'plugins = ["first", "second"]'}, {"env": "first,second"}])
def test_two_for_an_exclusive_seam_fail_naming_both(install: Any, manager: Any, sources: Any) -> None:
    install("first", EXCLUSIVE)
    install("second", EXCLUSIVE)
    arguments = () if sources else ("first", "second")
    with pytest.raises(PluginError, match=r"'first' \(dist-first 1.0\) and 'second' \(dist-second 1.0\)"):
        manager(*arguments, **sources)


def test_two_components_of_one_name_fail_naming_both(install: Any, manager: Any) -> None:
    install("first", CHAINED, component="same")
    install("second", CHAINED, component="same")
    with pytest.raises(PluginError, match=r"'same' \(dist-first 1.0\) and 'same' \(dist-second 1.0\)"):
        manager("first", "second")


def test_hooks_of_plugins_are_called_in_order_and_before_those_of_objects(
    install: Any, manager: Any, thing: Any
) -> None:
    class Object:
        @hookimpl
        def post_schedule(self, plan: list[str]) -> None:
            plan.append("object")

    code = (
        "from deepinfer_core.hookspecs import hookimpl\nclass Thing:\n"
        "    @hookimpl\n    def post_schedule(self, plan):\n        plan.append({name!r})\n"
    )
    install("late", code=code.format(name="late"), extra='after = ["early"]', distribution="a")
    install("early", code=code.format(name="early"), distribution="b")
    install("sampling", "sampler", thing("sampler"))
    found = manager(Object, "late", "early", "sampling").resolve()
    plan: list[str] = []
    found.hooks.post_schedule(plan)
    assert plan == ["early", "late", "object"]
