"""What a request's draws depend on, as it grows token by token."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.interfaces.sampler import LogitEdits, SamplingRow
from deepinfer_core.sampling import SamplingState
from deepinfer_core.sampling.state import TokenCounts, TokenLog
from deepinfer_core.sampling_params import SamplingParams

ids = st.lists(st.integers(0, 300), max_size=400)


@given(ids, ids)
def test_counts_are_those_of_the_output_over_the_ids_of_both(prompt: list[int], output: list[int]) -> None:
    counts = TokenCounts(prompt)
    for token in output:
        counts.append(token)
    expected = Counter(output)
    assert counts.ids.tolist() == list(dict.fromkeys(prompt + output))
    assert counts.counts.tolist() == [expected[token] for token in counts.ids.tolist()]
    assert counts.ids.dtype == counts.counts.dtype == np.int32


@given(ids)
def test_views_of_a_log_stay_as_they_were(output: list[int]) -> None:
    log = TokenLog()
    views = [log.view()]
    for token in output:
        log.append(token)
        views.append(log.view())
    assert [view.tolist() for view in views] == [output[:n] for n in range(len(output) + 1)]


def test_views_of_a_log_are_read_only() -> None:
    log = TokenLog()
    log.append(4)
    view = log.view()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True


def test_a_request_without_edits_carries_none() -> None:
    state = SamplingState("a", SamplingParams(), 3, [1, 2], (9,))
    row = state.row(2)
    assert (row.seed, row.position, row.edits, row.forced, row.context) == (3, 2, None, None, None)


def test_forced_tokens_come_in_order_and_then_no_more() -> None:
    state = SamplingState("a", SamplingParams(forced_token_ids=[5, 5, 1]), 0, [1])
    seen = []
    for position in range(1, 6):
        seen.append(state.row(position).forced)
        state.advance(seen[-1] or 7)
    assert seen == [5, 5, 1, None, None]


def test_stop_ids_are_masked_beside_the_banned_ones_until_min_tokens_are_out() -> None:
    state = SamplingState("a", SamplingParams(min_tokens=2, banned_token_ids=[4]), 0, [1], (9, 2))
    masks = []
    for position in range(1, 4):
        edits = state.row(position).edits
        assert edits is not None, "a token is banned throughout"
        masks.append(edits.banned.tolist())
        state.advance(0)
    assert masks == [[2, 4, 9], [2, 4, 9], [4]]


def test_prompt_tokens_count_for_the_repetition_penalty_only() -> None:
    for fields, expected in (({"repetition_penalty": 2.0}, [7, 8, 9]), ({"presence_penalty": 1.0}, [9])):
        state = SamplingState("a", SamplingParams(**fields), 0, [7, 8])  # type: ignore[arg-type]
        state.advance(9)
        edits = state.row(3).edits
        assert edits is not None, "there is a penalty"
        assert edits.seen_ids.tolist() == expected and edits.seen_counts.tolist()[-1] == 1


def described(row: SamplingRow) -> Any:
    """Everything a row says, as plain values."""
    edits = row.edits and [np.asarray(getattr(row.edits, field.name)).tolist() for field in attrs.fields(LogitEdits)]
    context = row.context and (row.context.request_id, row.context.output_token_ids.tolist())
    return row.params, row.seed, row.position, edits, row.forced, context


tokens = st.integers(0, 6)
looks = st.lists(st.tuples(st.lists(tokens, max_size=4), st.integers(0, 4)), max_size=6)


@given(
    prompt=st.lists(tokens, max_size=6),
    looks=looks,
    repetition=st.sampled_from([1.0, 1.3]),
    presence=st.sampled_from([0.0, 0.5]),
    min_tokens=st.integers(0, 6),
    forced=st.lists(tokens, max_size=5),
)
def test_rows_of_drafts_are_those_of_a_request_that_has_them(
    prompt: list[int],
    looks: list[tuple[list[int], int]],
    repetition: float,
    presence: float,
    min_tokens: int,
    forced: list[int],
) -> None:
    """However often a state looks ahead, and whatever is accepted of it."""
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, min_tokens=min_tokens, forced_token_ids=forced,
        max_tokens=None,
    )  # fmt: skip

    def state_with(output: list[int]) -> SamplingState:
        state = SamplingState("a", params, 3, prompt, (5,), is_processed=True)
        for token in output:
            state.advance(token)
        return state

    state, output, kept = SamplingState("a", params, 3, prompt, (5,), is_processed=True), list[int](), []
    for drafts, accepted in looks:
        position = len(prompt) + len(output)
        rows = state.rows(position, drafts)
        expected = [state_with(output + drafts[:n]).row(position + n) for n in range(len(drafts) + 1)]
        assert [described(row) for row in rows] == [described(row) for row in expected]
        kept += [(row.context, row.context and row.context.output_token_ids.tolist()) for row in rows]
        for token in [*drafts[:accepted], (len(output) * 3) % 7]:
            output.append(token)
            state.advance(token)
    assert described(state.row(0)) == described(state_with(output).row(0))
    for context, seen in kept:
        assert context is not None and context.output_token_ids.tolist() == seen, "a context changed afterwards"
