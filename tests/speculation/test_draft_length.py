"""How many drafts are verified: what pays, by costs that are learned, and never by what comes after a draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.speculation.draft_length import AdaptiveLength, DraftLength, FixedLength

DRAFTS = 5


def lengths(length: DraftLength, num_seqs: int, probabilities: Sequence[Any]) -> list[int]:
    """Of sequences with drafts of several lengths."""
    useful = np.array([len(each) for each in probabilities], np.int32)
    table = np.ones((len(useful), max(useful)))
    for row, each in zip(table, probabilities, strict=True):
        row[: len(each)] = each
    found = length.lengths(num_seqs, table, useful)
    assert found.dtype == np.int32 and (found <= useful).all()
    return [int(count) for count in found]


def simulate(
    length: AdaptiveLength,
    steps: int,
    *,
    num_seqs: int = 4,
    cost: Callable[[int], float],
    drafting: float,
    chance: float,
) -> tuple[float, float, int]:
    """Tokens per second, those without drafting, and steps in which something was drafted."""
    random, clock, tokens, drafted = np.random.default_rng(0), 0.0, 0, 0
    for _ in range(steps):
        counts, accepted = [0] * num_seqs, [0] * num_seqs
        proposed = length.wants_drafts(num_seqs)
        if proposed:
            clock += drafting
            length.drafted(num_seqs, drafting)
            counts = lengths(length, num_seqs, [np.full(DRAFTS, chance)] * num_seqs)
            drafted += any(counts)
            hits = random.random((num_seqs, DRAFTS)) < chance
            accepted = [sum(itertools.takewhile(bool, hits[s, :n])) for s, n in enumerate(counts)]
        rows = num_seqs + sum(counts)
        clock += cost(rows)
        length.ran(rows, cost(rows))
        tokens += num_seqs + sum(accepted)
        if proposed:
            length.verified(sum(counts), sum(accepted), num_seqs)
    return tokens / clock, num_seqs / cost(num_seqs), drafted


def memory_bound(rows: int) -> float:
    """Up to 32 rows cost as much as one."""
    return 0.02 * max(1.0, rows / 32)


def compute_bound(rows: int) -> float:
    return 0.005 * rows


def test_where_rows_are_free_good_drafts_are_all_verified() -> None:
    rate, plain, drafted = simulate(AdaptiveLength(), 300, cost=memory_bound, drafting=0.002, chance=0.8)
    assert rate > 2.5 * plain and drafted > 280


def test_where_rows_cost_only_likely_drafts_are_verified() -> None:
    length = AdaptiveLength()
    simulate(length, 200, cost=lambda rows: 0.01 + 0.005 * rows, drafting=0.0, chance=0.7)
    (chosen,) = lengths(length, 1, [np.array([0.99, 0.99, 0.5, 0.1, 0.99])])
    assert 2 <= chosen <= 3


@pytest.mark.parametrize(("cost", "drafting", "chance"), [(memory_bound, 0.03, 0.05), (compute_bound, 0.004, 0.3)])
def test_drafting_that_does_not_pay_pauses_and_is_tried_again(
    cost: Callable[[int], float], drafting: float, chance: float
) -> None:
    rate, plain, drafted = simulate(AdaptiveLength(), 3000, cost=cost, drafting=drafting, chance=chance)
    assert rate > 0.95 * plain
    assert drafted < 300


def test_drafting_that_begins_to_pay_is_taken_up() -> None:
    length = AdaptiveLength()
    simulate(length, 300, cost=memory_bound, drafting=0.01, chance=0.02)
    rate, plain, _ = simulate(length, 1500, cost=memory_bound, drafting=0.01, chance=0.9)
    assert rate > 1.5 * plain


chances = st.lists(st.lists(st.floats(0, 1), min_size=DRAFTS, max_size=DRAFTS), min_size=1, max_size=5)


@given(chances, st.integers(0, 4), st.integers(1, DRAFTS - 1), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_whether_a_draft_is_verified_does_not_depend_on_those_after_it(
    values: list[list[float]], owner: int, depth: int, others: list[float]
) -> None:
    length = AdaptiveLength()
    for rows in range(1, 40):
        length.ran(rows, 0.01 + 0.002 * rows + 0.003 * (rows % 8 == 0))
    for _ in range(10):
        length.verified(1, 1, 1)
    owner %= len(values)
    first = lengths(length, len(values), [np.array(each) for each in values])
    values[owner][depth:] = others[: DRAFTS - depth]
    second = lengths(length, len(values), [np.array(each) for each in values])
    assert min(first[owner], depth) == min(second[owner], depth)


def test_a_fixed_length_is_what_there_is_of_it() -> None:
    length = FixedLength(3)
    assert length.wants_drafts(1)
    assert lengths(length, 4, [np.ones(5), np.ones(2), np.ones(0)]) == [3, 2, 0]
