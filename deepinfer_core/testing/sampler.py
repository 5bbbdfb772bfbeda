"""Conformance of ``sampler`` components."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from deepinfer_core.interfaces.sampler import DraftingSampler, Proposals, Sampler, SamplerOutput, SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of, edited_logits, narrowed
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.suite import Suite

VOCAB = 301
PROMPT: Sequence[int] = (4, 8, 15, 16, 8)
OUTPUT: Sequence[int] = (23, 8, 42)
GREEDY: dict[str, Any] = {"temperature": 0.0}
#: Requests of all kinds, greedy and random, filtered, edited, with and without logprobs.
MIXED: Sequence[dict[str, Any]] = (
    {},
    GREEDY,
    {"temperature": 0.7, "top_p": 0.9, "logprobs": 3},
    {"temperature": 1.3, "top_k": 7, "logprobs": 0},
    {"min_p": 0.2, "banned_token_ids": [3, 5]},
    {"temperature": 0.0, "logprobs": 5, "logit_bias": {7: 3.0}},
    {"allowed_token_ids": [1, 2, 3], "logprobs": 2, "logprobs_mode": "processed"},
    {"temperature": 2.0, "repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    {"forced_token_ids": [9], "logprobs": 1},
)


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """``[rows, vocab]`` f32, about as peaked as a model's."""
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def rows_of(params: Sequence[Mapping[str, Any]], seed: ArrayLike = 0, position: ArrayLike = 9) -> SamplingBatch:
    """What the engine makes of requests with these parameters, in the middle of their outputs.

    seed, position: for all rows or for each.
    """
    requests = [
        Drawn(
            SamplingParams(**each),
            prompt_token_ids=PROMPT,
            output_token_ids=() if "forced_token_ids" in each else OUTPUT,
        )
        for each in params
    ]
    own = np.zeros(len(requests), np.int64)
    return attrs.evolve(
        batch_of(requests), seed=(own + np.asarray(seed)).astype(np.uint64), position=own + np.asarray(position)
    )


def entry(output: SamplerOutput, row: int) -> tuple[Any, ...]:
    """Everything an output says of one row, comparable with ``==``."""
    top = slice(int(output.top_offsets[row]), int(output.top_offsets[row + 1]))
    values = output.logprobs[row : row + 1], output.top_logprobs[top]
    return (
        int(output.token_ids[row]),
        int(output.ranks[row]),
        output.top_ids[top].tolist(),
        *(value.tobytes() for value in values),
    )


def drafting(component: Sampler) -> DraftingSampler:
    """The component, if it draws proposals; otherwise the test is skipped."""
    if not isinstance(component, DraftingSampler):
        pytest.skip("the sampler draws no proposals, so drafts are verified by comparison only")
    return component


class SamplerSuite(Suite):
    """A sampler may draw from another distribution than the default one; whatever it draws from, what a request
    excludes stays excluded, greedy means argmax, and a row depends on nothing but itself."""

    seam = "sampler"

    def mixed(self, rows: int) -> SamplingBatch:
        """Rows of different requests, one in four with a mask."""
        numbers = np.arange(rows)
        batch = rows_of([MIXED[i % len(MIXED)] for i in range(rows)], numbers, 20 + numbers)
        return narrowed(batch, numbers[::4], np.arange(VOCAB) % 7 != numbers[::4, None] % 7)

    @pytest.mark.parametrize("rows", [0, 1, 5, 64])
    def test_outputs_have_one_entry_per_row(self, component: Sampler, rows: int) -> None:
        """Shapes and dtypes."""
        out = component.sample(random_logits(rows), self.mixed(rows))
        assert isinstance(out, SamplerOutput)
        kinds = {"token_ids": np.int32, "logprobs": np.float32, "ranks": np.int32, "top_offsets": np.int64}
        found = {name: (getattr(out, name).dtype, getattr(out, name).shape) for name in kinds}
        assert found == {n: (np.dtype(k), (rows + (n == "top_offsets"),)) for n, k in kinds.items()}
        size = int(out.top_offsets[-1])
        assert out.top_ids.shape == out.top_logprobs.shape == (size,)
        assert ((out.token_ids >= 0) & (out.token_ids < VOCAB)).all(), "every row has something to draw"

    def test_greedy_is_argmax_and_ties_go_to_the_lowest_id(self, component: Sampler) -> None:
        """temperature 0."""
        logits = random_logits(40).round()  # rounding makes ties
        out = component.sample(logits, rows_of([GREEDY] * 40, np.arange(40)))
        first = [int((row == row.max()).nonzero()[0]) for row in logits]
        assert out.token_ids.tolist() == first

    def test_a_row_does_not_notice_its_neighbours_or_its_place(self, component: Sampler) -> None:
        """Alone, permuted, and beside rows that fail: the same bits."""
        size = 2 * len(MIXED)
        logits, batch = random_logits(size), self.mixed(size)
        whole = component.sample(logits, batch)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(1)).tolist()
        permuted = component.sample(logits[order], batch.select(order))
        for place, row in enumerate(order):
            alone = component.sample(logits[[row]], batch.select([row]))
            found = entry(permuted, place), entry(alone, 0)
            assert found == (entry(whole, row),) * 2, f"row {row}: {MIXED[row % len(MIXED)]}"
        spoilt = torch.cat([logits, logits[:1] * math.nan])
        beside = component.sample(spoilt, batch.select([*range(size), 0]))
        assert [entry(beside, i) for i in range(size)] == [entry(whole, i) for i in range(size)]

    def test_a_call_leaves_no_trace(self, component: Sampler) -> None:
        """The same arguments give the same result, whatever was sampled in between."""
        logits, batch = random_logits(9), self.mixed(9)
        before = component.sample(logits, batch)
        component.sample(random_logits(30, seed=5), self.mixed(30))
        after = component.sample(logits, batch)
        assert [entry(before, i) for i in range(9)] == [entry(after, i) for i in range(9)]

    def test_logits_are_left_unchanged_and_may_be_strided(self, component: Sampler) -> None:
        """The core reads them again for logprobs."""
        wide = random_logits(9, vocab=2 * VOCAB)
        strided, copy = wide[:, ::2], wide.clone()
        out = component.sample(strided, self.mixed(9))
        assert torch.equal(wide, copy), "sample changed the logits it was given"
        packed = component.sample(strided.contiguous(), self.mixed(9))
        assert [entry(out, i) for i in range(9)] == [entry(packed, i) for i in range(9)]

    def test_the_batch_is_left_unchanged(self, component: Sampler) -> None:
        """Columns are the scheduler's own, and read again."""
        batch = self.mixed(18)
        before = batch.to_bytes()
        component.sample(random_logits(18), batch)
        assert batch.to_bytes() == before, "sample changed the batch it was given"

    @pytest.mark.parametrize("spoil", [math.nan, math.inf])
    def test_a_row_with_nothing_to_draw_fails_alone(self, component: Sampler, spoil: float) -> None:
        """NaN, +inf, or every token masked: token id -1, and no exception."""
        logits = random_logits(5)
        logits[1, 7] = spoil
        logits[2] = -math.inf
        batch = rows_of([{}, {"logprobs": 2}, {}, {"banned_token_ids": [*range(VOCAB)]}, {}])
        out = component.sample(logits, narrowed(batch, np.array([4]), np.zeros((1, VOCAB), np.bool_)))
        assert out.token_ids[1:].tolist() == [-1, -1, -1, -1] and out.token_ids[0] >= 0
        assert math.isnan(out.logprobs[1]) and out.ranks[1] == 0

    def test_what_a_request_excludes_is_never_drawn(self, component: Sampler) -> None:
        """Banned and allowed ids, masks, top_k, top_p, min_p, over many positions of a flat distribution."""
        rows = 300
        logits = random_logits(1).expand(rows, -1) * 0.1
        probabilities = logits[0].double().softmax(0)
        ranked = probabilities.argsort(descending=True, stable=True)
        nucleus = int((probabilities[ranked].cumsum(0) < 0.3).sum()) + 1
        likely = (probabilities >= 0.7 * probabilities.max()).nonzero().flatten()
        for params, possible in (
            ({"banned_token_ids": [*range(0, VOCAB, 2)]}, range(1, VOCAB, 2)),
            ({"allowed_token_ids": [2, 30, 300]}, (2, 30, 300)),
            ({"top_k": 4}, ranked[:4].tolist()),
            ({"top_p": 0.3}, ranked[:nucleus].tolist()),
            ({"min_p": 0.7}, likely.tolist()),
        ):
            out = component.sample(logits, rows_of([params] * rows, 3, np.arange(rows)))
            assert set(out.token_ids.tolist()) <= set(possible), f"drawn in spite of {params}"
        kept = np.arange(VOCAB) % 5 == np.arange(rows)[:, None] % 5
        masked = narrowed(rows_of([{}] * rows, 3, np.arange(rows)), np.arange(rows), kept)
        tokens = component.sample(logits, masked).token_ids
        assert kept[np.arange(rows), tokens].all(), "drawn in spite of a mask"

    def test_seeds_and_positions_make_the_randomness(self, component: Sampler) -> None:
        """Draws of a hot request differ by position and by seed, and come again with both."""
        logits = torch.zeros(64, VOCAB)
        draws = [
            component.sample(logits, rows_of([{"temperature": 5.0}] * 64, seed, np.arange(64))).token_ids.tolist()
            for seed in (1, 2, 1)
        ]
        if len(set(draws[0])) == 1:
            pytest.skip("the sampler draws deterministically at temperature 5 over equal logits")
        assert draws[0] == draws[2] and draws[0] != draws[1] and len(set(draws[0])) > 16

    def test_edits_and_logprobs_agree_with_the_default_sampler(self, component: Sampler) -> None:
        """Where the token is determined (greedy, forced), all that is reported is."""
        params: list[dict[str, Any]] = [
            {"logprobs": 4}, {"logprobs": 3, "logit_bias": {7: 50.0}}, {"logprobs": 2, "repetition_penalty": 3.0},
            {"logprobs": 0, "presence_penalty": 2.0, "frequency_penalty": -2.0}, {},
            {"forced_token_ids": [11], "logprobs": 1},
            {"logprobs": 6, "logprobs_mode": "processed", "banned_token_ids": [4]},
            {"logprobs": 6, "logprobs_mode": "processed", "logit_bias": {8: 4.0, 23: 9.0, 42: 8.0},
             "repetition_penalty": 1.5, "presence_penalty": 1.0, "banned_token_ids": [23]},
        ]  # fmt: skip
        batch = rows_of([{**GREEDY, **each} for each in params])
        logits = random_logits(len(params), seed=3)
        expected, found = (each.sample(logits, batch) for each in (DefaultSampler(), component))
        for i, each in enumerate(params):
            (*discrete, first, top), (*wanted, first_wanted, top_wanted) = entry(found, i), entry(expected, i)
            assert discrete == wanted, f"token, rank and most likely tokens of {each}"
            for one, other in ((first, first_wanted), (top, top_wanted)):
                np.testing.assert_allclose(np.frombuffer(one, "f4"), np.frombuffer(other, "f4"), atol=1e-4)

    @pytest.mark.parametrize("max_candidates", [0, 5])
    def test_proposals_say_what_they_were_drawn_from(self, component: Sampler, max_candidates: int) -> None:
        """Of samplers that draw them: ids rise, probabilities sum to 1, and the token is one of the ids."""
        size = 64
        batch = self.mixed(size)
        proposals = drafting(component).propose(random_logits(size), batch, max_candidates)
        assert proposals.tokens.dtype == np.int32 and proposals.tokens.shape == (size,)
        assert proposals.offsets.shape == (size + 1,) and proposals.ids.shape == proposals.probabilities.shape
        possible = edited_logits(random_logits(size).numpy(), batch) > -math.inf
        for row in range(size):
            part = slice(int(proposals.offsets[row]), int(proposals.offsets[row + 1]))
            ids, probabilities = proposals.ids[part], proposals.probabilities[part]
            assert (np.diff(ids) > 0).all() and proposals.tokens[row] in ids
            assert (probabilities > 0).all() and abs(probabilities.sum() - 1) < 1e-9
            assert len(ids) <= (max_candidates or VOCAB)
            is_forced = batch.forced is not None and batch.forced[row] >= 0
            assert is_forced or possible[row, ids].all(), f"proposed in spite of {MIXED[row % len(MIXED)]}"

    def test_proposals_and_their_verification_are_their_rows_alone(self, component: Sampler) -> None:
        """Of samplers that draw them: permuted and alone, the same bits; and another call changes nothing."""
        sampler, size = drafting(component), 2 * len(MIXED)
        logits, batch = random_logits(size), self.mixed(size)
        proposals = sampler.propose(logits + random_logits(size, seed=7), batch, 8)
        verifying = attrs.evolve(batch, proposed=proposals)
        whole = sampler.sample(logits, verifying)
        for order in (np.arange(size)[::-1], *np.arange(size)[:, None]):
            rows = order.tolist()
            again = sampler.propose(logits[rows] + random_logits(size, seed=7)[rows], batch.select(rows), 8)
            assert _content(again) == _content(proposals.select(rows)), f"proposals of rows {rows}"
            found = sampler.sample(logits[rows], verifying.select(rows))
            assert [entry(found, i) for i in range(len(rows))] == [entry(whole, row) for row in rows]

    def test_drafts_from_the_models_own_logits_are_accepted(self, component: Sampler) -> None:
        """Of samplers that draw proposals: where both distributions are the same, none is replaced; where the draft's
        is nowhere, all are."""
        sampler, rows = drafting(component), 300
        batch, logits = rows_of([{}] * rows, np.arange(rows)), random_logits(rows)
        proposals = sampler.propose(logits, batch, 0)
        tokens = sampler.sample(logits, attrs.evolve(batch, proposed=proposals)).token_ids
        assert (tokens == proposals.tokens).mean() > 0.99
        excluded = narrowed(batch, np.arange(rows), np.arange(VOCAB) != proposals.tokens[:, None])
        tokens = sampler.sample(logits, attrs.evolve(excluded, proposed=proposals)).token_ids
        assert (tokens != proposals.tokens).all() and (tokens >= 0).all()


def _content(proposals: Proposals) -> list[Any]:
    return [np.asarray(column).tolist() for column in attrs.astuple(proposals, recurse=False)]
