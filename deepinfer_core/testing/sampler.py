"""Conformance of ``sampler`` components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.interfaces.sampler import Sampler, SamplerOutput, SamplingRow
from deepinfer_core.sampling import DefaultSampler, SamplingState
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.suite import Suite

VOCAB = 301
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


def sampling_row(seed: int = 0, position: int = 9, **params: Any) -> SamplingRow:
    """What the engine makes of a request with a short prompt and no output yet."""
    return SamplingState("request", SamplingParams(**params), seed, [4, 8, 15, 16, 8]).row(position)


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


class SamplerSuite(Suite):
    """A sampler may draw from another distribution than the default one; whatever it draws from, what a request
    excludes stays excluded, greedy means argmax, and a row depends on nothing but itself."""

    seam = "sampler"

    def mixed(self, rows: int) -> list[SamplingRow]:
        """Rows of different requests."""
        return [sampling_row(i, 20 + i, **MIXED[i % len(MIXED)]) for i in range(rows)]

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
        out = component.sample(logits, [sampling_row(i, **GREEDY) for i in range(40)])
        first = [int((row == row.max()).nonzero()[0]) for row in logits]
        assert out.token_ids.tolist() == first

    def test_a_row_does_not_notice_its_neighbours_or_its_place(self, component: Sampler) -> None:
        """Alone, permuted, and beside rows that fail: the same bits."""
        size = 2 * len(MIXED)
        logits, rows = random_logits(size), self.mixed(size)
        whole = component.sample(logits, rows)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
        permuted = component.sample(logits[order], [rows[i] for i in order.tolist()])
        for place, row in enumerate(order.tolist()):
            alone = component.sample(logits[row : row + 1], [rows[row]])
            found = entry(permuted, place), entry(alone, 0)
            assert found == (entry(whole, row),) * 2, f"row {row}: {MIXED[row % len(MIXED)]}"
        spoilt = torch.cat([logits, torch.full((1, VOCAB), math.nan)])
        beside = component.sample(spoilt, [*rows, sampling_row()])
        assert [entry(beside, i) for i in range(size)] == [entry(whole, i) for i in range(size)]

    def test_a_call_leaves_no_trace(self, component: Sampler) -> None:
        """The same arguments give the same result, whatever was sampled in between."""
        logits, rows = random_logits(9), self.mixed(9)
        before = component.sample(logits, rows)
        component.sample(random_logits(30, seed=5), self.mixed(30))
        after = component.sample(logits, rows)
        assert [entry(before, i) for i in range(9)] == [entry(after, i) for i in range(9)]

    def test_logits_are_left_unchanged_and_may_be_strided(self, component: Sampler) -> None:
        """The core reads them again for logprobs."""
        wide = random_logits(9, vocab=2 * VOCAB)
        strided, copy = wide[:, ::2], wide.clone()
        out = component.sample(strided, self.mixed(9))
        assert torch.equal(wide, copy), "sample changed the logits it was given"
        packed = component.sample(strided.contiguous(), self.mixed(9))
        assert [entry(out, i) for i in range(9)] == [entry(packed, i) for i in range(9)]

    @pytest.mark.parametrize("spoil", [math.nan, math.inf])
    def test_a_row_with_nothing_to_draw_fails_alone(self, component: Sampler, spoil: float) -> None:
        """NaN, +inf, or every token masked: token id -1, and no exception."""
        logits = random_logits(4)
        logits[1, 7] = spoil
        logits[2] = -math.inf
        rows = [
            sampling_row(),
            sampling_row(logprobs=2),
            sampling_row(),
            sampling_row(banned_token_ids=[*range(VOCAB)]),
        ]
        out = component.sample(logits, rows)
        assert out.token_ids[1:].tolist() == [-1, -1, -1] and out.token_ids[0] >= 0
        assert math.isnan(out.logprobs[1]) and out.ranks[1] == 0

    def test_what_a_request_excludes_is_never_drawn(self, component: Sampler) -> None:
        """Banned and allowed ids, top_k, top_p, min_p, over many positions of a flat distribution."""
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
            out = component.sample(logits, [sampling_row(3, i, **params) for i in range(rows)])
            assert set(out.token_ids.tolist()) <= set(possible), f"drawn in spite of {params}"

    def test_seeds_and_positions_make_the_randomness(self, component: Sampler) -> None:
        """Draws of a hot request differ by position and by seed, and come again with both."""
        logits = torch.zeros(64, VOCAB)
        draws = [
            component.sample(logits, [sampling_row(seed, i, temperature=5.0) for i in range(64)]).token_ids.tolist()
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
        ]  # fmt: skip
        rows = [sampling_row(**GREEDY, **each) for each in params]
        logits = random_logits(len(rows), seed=3)
        expected, found = (each.sample(logits, rows) for each in (DefaultSampler(), component))
        for i, each in enumerate(params):
            (*discrete, first, top), (*wanted, first_wanted, top_wanted) = entry(found, i), entry(expected, i)
            assert discrete == wanted, f"token, rank and most likely tokens of {each}"
            for one, other in ((first, first_wanted), (top, top_wanted)):
                np.testing.assert_allclose(np.frombuffer(one, "f4"), np.frombuffer(other, "f4"), atol=1e-4)
