"""A matcher held to its protocol: masks, ends, look-ahead, and whatever an engine may do wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer_core.interfaces.grammar import Vocabulary
from deepinfer_core.structured.guide import Guide, GuideContext

#: Ids 0 and 1 end a sequence; 2 is special, 3 is unknown to the tokenizer; then texts.
VOCABULARY = Vocabulary(
    (b"", b"", b"", b"", b"a", b"b", b"ab", b"ba", b"c", *[b"x"] * 30), {"<e>": 0, "<s>": 2}, (0, 1)
)
CONTEXT = GuideContext("toy", VOCABULARY)
tokens = st.integers(0, 9)


def bits(mask: Any) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def guide(toys: ModuleType, *texts: str, ending: Any = (0, 1), matcher: type | None = None) -> Guide:
    grammar = toys.Texts([text.encode() for text in texts], VOCABULARY, matcher or toys.TextsMatcher)
    return Guide(grammar, CONTEXT, ending)


def test_ends_may_come_where_the_text_is_whole_and_only_there(toys: ModuleType) -> None:
    one = guide(toys, "ab", "abc")
    assert bits(one.mask()) == {4, 6} and not one.is_over
    one.advance(6)
    assert bits(one.mask()) == {8, 0, 1} and not one.is_over
    one.advance(8)
    assert one.mask() is None and one.is_over and one.error is None
    assert [one.allows(token) for token in (0, 1, 8)] == [True, True, False]
    one.advance(1)
    assert one.mask() is None and one.error is None and not one.is_over
    one.retreat(3)
    assert bits(one.mask()) == {4, 6}
    without = guide(toys, "ab", ending=())
    without.advance(6)
    assert without.mask() is None and without.is_over and without.error is None


def test_stop_ids_that_are_text_are_the_grammars(toys: ModuleType) -> None:
    assert CONTEXT.ending_ids((0, 2, 3, 8)) == (0, 2, 3)


def test_an_engine_may_not_allow_ends_unknown_ids_or_what_is_beyond(toys: ModuleType) -> None:
    everything = type("All", (toys.TextsMatcher,), {"fill_mask": lambda self, row: row.fill(-1)})
    assert bits(guide(toys, "ab", matcher=everything).mask()) == {2, *range(4, 39)}


@given(drafts=st.lists(st.lists(tokens, max_size=5), max_size=5), texts=st.sets(st.text("abc", min_size=1), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_looking_ahead_changes_nothing(toys: ModuleType, drafts: list[list[int]], texts: set[str]) -> None:
    looked, plain = guide(toys, *texts), guide(toys, *texts)
    for ahead in drafts:
        for token in ahead:
            looked.advance(token)
            looked.mask()
        looked.retreat(len(ahead))
        assert looked.error is None and looked.is_over == plain.is_over
        if plain.is_over:
            return
        assert bits(looked.mask()) == bits(plain.mask())
        token = min(bits(plain.mask()))
        for each in (looked, plain):
            each.advance(token)
        if token in VOCABULARY.eos_token_ids:
            return


def test_masks_of_drafts_are_those_of_the_drafts_accepted(toys: ModuleType) -> None:
    def accepted(*tokens: int) -> Guide:
        made = guide(toys, "abab", "abc", "abcc")
        for token in tokens:
            made.advance(token)
        return made

    ahead, masks = accepted(4), []
    for draft in (5, 8, 0, 4):
        masks.append(ahead.mask())
        ahead.advance(draft)
    for mask, committed in zip(masks, ([4], [4, 5], [4, 5, 8]), strict=False):
        assert bits(mask) == bits(accepted(*committed).mask())
    assert ahead.mask() is None  # after an end nothing is known, and nothing is drawn
    ahead.retreat(4)
    assert bits(ahead.mask()) == bits(accepted(4).mask()) and ahead.error is None


def seen(mask: Any) -> set[int] | None:
    return None if mask is None else bits(mask)


def counting(toys: ModuleType, **members: Any) -> tuple[type, list[bytes]]:
    """A matcher and, for each time that it was asked for a mask, the text before it."""
    asked: list[bytes] = []

    def fill(self: Any, row: Any) -> None:
        asked.append(b"".join(self.pieces))
        toys.TextsMatcher.fill_mask(self, row)

    return type("Counting", (toys.TextsMatcher,), {"fill_mask": fill, **members}), asked


#: Which of the tokens that may come; 9: one that may not.
choices = st.integers(0, 9)
#: Of the supposition before it, how much is kept, and what follows: it grows, shrinks, or takes another way.
suppositions = st.tuples(st.just("suppose"), st.integers(0, 6), st.lists(choices, max_size=3))
events = st.lists(
    suppositions
    | suppositions
    | st.tuples(st.just("again"), st.integers(0, 9))
    | st.tuples(st.just("advance"), choices)
    | st.tuples(st.just("retreat"), st.integers(0, 3))
    | st.tuples(st.just("read"), st.sampled_from(["error", "is_over", "allows"])),
    max_size=25,
)
READS: dict[str, Callable[[Guide], Any]] = {
    "error": lambda one: one.error,
    "is_over": lambda one: one.is_over,
    "allows": lambda one: [one.allows(token) for token in range(10)],
    "mask": lambda one: seen(one.mask()),
    "is_lost": lambda one: one.is_lost,
}


@given(events=events, texts=st.sets(st.text("ab", min_size=3, max_size=9), min_size=2, max_size=5))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_masks_after_suppositions_are_those_of_a_fresh_guide(
    toys: ModuleType, events: list[Any], texts: set[str]
) -> None:
    """In any order; the engine is asked once for each between two tokens, and nothing that is read changes."""
    matcher, asked = counting(toys)
    one = guide(toys, *texts, matcher=matcher)
    committed: list[int] = []
    supposed: list[int] = []
    earlier: list[list[int]] = []
    known: set[tuple[int, ...]] = set()

    def fresh(*ahead: int) -> Guide:
        made = guide(toys, *texts)
        for token in (*committed, *ahead):
            made.advance(token)
        return made

    def chosen(choice: int, *ahead: int) -> int:
        allowed = sorted(seen(fresh(*ahead).mask()) or ())
        return allowed[choice % len(allowed)] if allowed and choice < 9 else 9

    for name, *values in events:
        if name in ("suppose", "again"):
            if name == "suppose":
                supposed = supposed[: values[0]]
                for choice in values[1]:
                    supposed = [*supposed, chosen(choice, *supposed)]
            elif earlier:
                supposed = earlier[values[0] % len(earlier)]
            before = len(asked)
            assert seen(one.mask_after(supposed)) == seen(fresh(*supposed).mask())
            assert len(asked) - before <= (tuple(supposed) not in known)
            known.add(tuple(supposed))
            earlier.append(supposed)
        elif name == "advance":
            token = chosen(values[0])
            one.advance(token)
            committed.append(token)
            known.clear()
        elif name == "retreat":
            count = min(values[0], len(committed))
            one.retreat(count)
            del committed[len(committed) - count :]
            known.clear()
        else:
            assert READS[values[0]](one) == READS[values[0]](fresh())
    for read in ("error", "is_over", "allows", "mask", "is_lost"):
        assert READS[read](one) == READS[read](fresh())


@pytest.mark.parametrize(
    "read",
    [
        "error",
        "is_over",
        "allows",
        "mask",
        "is_lost",
    ],
)
def test_what_is_supposed_shows_nowhere_else(toys: ModuleType, read: str) -> None:
    """Not even in what is read first."""
    for supposed in ([], [5], [5, 8], [8], [8, 0], [0], [9], [9, 9]):
        one, plain = guide(toys, "ab", "abc"), guide(toys, "ab", "abc")
        one.advance(4)
        plain.advance(4)
        one.mask_after(supposed)
        assert READS[read](one) == READS[read](plain), supposed


def test_each_supposition_is_looked_up_once_between_two_tokens(toys: ModuleType) -> None:
    matcher, asked = counting(toys)
    one = guide(toys, "abab", "abc", "ba", matcher=matcher)
    for supposed in ([4], [4, 5], [], [4, 5, 8], [5], [4, 5], [4, 5, 4], [4], [5], [], [4, 5, 8]):
        one.mask_after(supposed)
    assert sorted(asked) == sorted([b"", b"a", b"ab", b"abc", b"b", b"aba"])
    one.advance(4)
    asked.clear()
    for supposed in ([], [5], [], [5]):
        one.mask_after(supposed)
    assert asked == [b"a", b"ab"]
    one.retreat(1)
    asked.clear()
    for supposed in ([4], [], [4]):
        one.mask_after(supposed)
    assert asked == [b"a", b""]


def failing_after(toys: ModuleType, name: str) -> type:
    """A matcher that fails in this call once its text is not empty."""

    def fail(self: Any, *args: Any) -> Any:
        if self.pieces:
            raise OSError("disk on fire")
        own = getattr(toys.TextsMatcher, name)
        return own.__get__(self) if isinstance(own, property) else own(self, *args)

    return type("Failing", (toys.TextsMatcher,), {name: property(fail) if name == "is_complete" else fail})


@pytest.mark.parametrize(
    ("name", "found"), [("fill_mask", set()), ("is_complete", set()), ("accept", None), ("rollback", {4, 6, 8})]
)
def test_an_engine_that_fails_at_what_is_supposed_ends_the_output(toys: ModuleType, name: str, found: Any) -> None:
    one = guide(toys, "abab", "abc", matcher=failing_after(toys, name))
    assert bits(one.mask()) == {4, 6} and one.error is None
    assert seen(one.mask_after([4, 5])) == found
    assert f"grammar engine 'toy' failed in {name}: OSError: disk on fire" in str(one.error)
    assert not one.is_over and bits(one.mask()) == set() and not any(one.allows(token) for token in range(10))
    assert seen(one.mask_after([])) == set() and not seen(one.mask_after([6]))
    one.advance(4)
    assert f"failed in {name}" in str(one.error) and not one.is_over


def test_a_committed_token_outside_the_mask_is_the_samplers_fault(toys: ModuleType) -> None:
    one = guide(toys, "ab")
    one.advance(8)
    assert "token 8 was drawn, which the grammar excludes: the sampler did not heed the mask" in str(one.error)
    one.retreat(1)
    assert one.error is None


def raising(*args: Any) -> Any:
    raise OSError("disk on fire")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"fill_mask": raising}, "'toy' failed in fill_mask: OSError: disk on fire"),
        ({"fill_mask": lambda self: None}, "'toy' failed in fill_mask: TypeError"),
        ({"is_complete": property(raising)}, "'toy' failed in is_complete: OSError"),
        ({"is_complete": "yes"}, "'toy': is_complete must be True or False, got 'yes'"),
        ({"__init__": raising}, "'toy' failed in matcher: OSError"),
    ],
)
def test_a_broken_matcher_allows_nothing_and_says_why(toys: ModuleType, members: Any, message: str) -> None:
    one = guide(toys, "ab", matcher=type("Broken", (toys.TextsMatcher,), members))
    assert bits(one.mask()) == set() and not one.is_over
    assert message in str(one.error)
    one.advance(4)
    one.retreat(1)
    assert bits(one.mask()) == set() and message in str(one.error)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"accept": raising}, "failed in accept: OSError"),
        ({"accept": lambda self, token: None}, "accept must be True or False, got None"),
        ({"accept": lambda self, token: False}, "token 4 was drawn"),
    ],
)
def test_a_matcher_that_will_not_accept(toys: ModuleType, members: Any, message: str) -> None:
    one = guide(toys, "ab", matcher=type("Broken", (toys.TextsMatcher,), members))
    one.advance(4)
    assert message in str(one.error)


def test_a_failing_rollback_ends_it(toys: ModuleType) -> None:
    one = guide(toys, "ab", matcher=type("Broken", (toys.TextsMatcher,), {"rollback": raising}))
    one.advance(4)
    one.retreat(1)
    assert "failed in rollback" in str(one.error) and bits(one.mask()) == set()


def test_what_an_engine_does_to_its_row_later_changes_nothing(toys: ModuleType) -> None:
    kept: list[Any] = []

    def fill(self: Any, row: Any) -> None:
        kept.append(row)
        row[0] = 1 << 4
        row.shape = (1, -1)

    one = guide(toys, "ab", matcher=type("Keeping", (toys.TextsMatcher,), {"fill_mask": fill}))
    mask = one.mask()
    kept[0].fill(-1)
    assert bits(mask) == {4}


def test_a_call_that_takes_too_long_is_the_last(toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("deepinfer_core.structured.guide.time.thread_time", lambda: now[0])

    def slow(self: Any, token: int) -> bool:
        now[0] += 1.5
        return True

    one = guide(toys, "ab", matcher=type("Slow", (toys.TextsMatcher,), {"accept": slow}))
    one.advance(4)
    assert "too slow: accept took 1.5 s, and the limit is 1 s" in str(one.error)
