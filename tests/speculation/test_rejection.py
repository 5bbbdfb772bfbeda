"""Speculative sampling by rejection gives the model's distribution, whatever drafts; chi-square over many draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.sampler import Proposals, SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.speculation.verifier import RejectionVerifier, make_verifier

VOCAB = 40
DRAWS = 24_000
#: Of the standard normal distribution: a correct sampler exceeds it in one check of 10,000.
QUANTILE = 3.72

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "top-k": {"temperature": 0.9, "top_k": 7},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "both and min-p": {"top_k": 12, "top_p": 0.9, "min_p": 0.05},
}


def logits_of(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1.5, VOCAB).astype(np.float32))


#: What the drafter thinks, given what the model does, and how many candidates are kept of it.
DRAFTERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "perfect": (lambda model: model, 0),
    "good": (lambda model: model + 0.5 * logits_of(9), 5),
    "useless": (torch.zeros_like, 0),
    "adversarial": (lambda model: -3 * model, 5),
}


def rows_of(params: SamplingParams, count: int = DRAWS) -> SamplingBatch:
    """The same row for many seeds, with a penalty on some tokens and a ban."""
    params = attrs.evolve(params, presence_penalty=0.7, banned_token_ids=[0])
    one = batch_of([Drawn(params, 0, [7] * 14, [1, 4, 4])])
    return attrs.evolve(one.select([0] * count), seed=np.arange(count, dtype=np.uint64))


def proposals(tokens: Sequence[int], ids: Sequence[int], probabilities: Sequence[float]) -> Proposals:
    """Of rows with the same candidates."""
    return Proposals(
        np.array(tokens, np.int32),
        len(ids) * np.arange(len(tokens) + 1),
        np.tile(np.array(ids, np.int32), len(tokens)),
        np.tile(np.array(probabilities), len(tokens)),
    )


def verifying(
    verifier: RejectionVerifier, batch: SamplingBatch, drafts: Any, proposed: Proposals | None
) -> SamplingBatch:
    """The rows that decide about one draft of each sequence."""
    count = len(batch)
    drafts = np.broadcast_to(np.asarray(drafts, np.int32), count)
    plan: Any = SimpleNamespace(
        num_drafts=np.ones(count, np.int32),
        samples=np.ones(count, bool),
        query_offsets=2 * np.arange(count + 1, dtype=np.int32),
        token_ids=np.stack([np.zeros(count, np.int32), drafts], axis=1).reshape(-1),
    )
    both = batch.select(np.repeat(np.arange(count), 2))
    ready = verifier.verifying(both, plan, np.arange(count), [] if proposed is None else [proposed])
    return ready.select(2 * np.arange(count))


def distribution(logits: torch.Tensor, params: SamplingParams) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a row draws from, from its processed logprobs."""
    row = rows_of(attrs.evolve(params, logprobs=VOCAB, logprobs_mode="processed"), 1)
    out = DefaultSampler(1).sample(logits[None], row)
    probabilities = np.zeros(VOCAB)
    probabilities[out.top_ids] = np.exp(out.top_logprobs.astype(np.float64))
    return probabilities


def check(tokens: Sequence[int], expected: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """The tokens fit the distribution by a chi-square test; what it excludes never comes."""
    counts = np.bincount(np.asarray(tokens), minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    order = np.argsort(expected)[::-1]
    keep = order[expected[order] * len(tokens) >= 8]
    rest = order[len(keep) :]
    observed = [*counts[keep], counts[rest].sum()]
    wanted = [*expected[keep] * len(tokens), expected[rest].sum() * len(tokens)]
    if wanted[-1] < 8:
        observed, wanted = observed[:-1], wanted[:-1]
    scaled = np.asarray(wanted) * sum(observed) / sum(wanted)
    statistic, freedom = float(((observed - scaled) ** 2 / scaled).sum()), max(len(observed) - 1, 1)
    limit = freedom * (1 - 2 / (9 * freedom) + QUANTILE * np.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty
    assert statistic < limit


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_samplers_own_proposals(setting: str, drafter: str) -> None:
    params, sampler = SamplingParams(**SETTINGS[setting]), DefaultSampler(1)
    model, (opinion, max_candidates) = logits_of(1), DRAFTERS[drafter]
    batch = rows_of(params)
    proposed = sampler.propose(opinion(model).expand(DRAWS, -1), batch, max_candidates)
    tokens = sampler.sample(model.expand(DRAWS, -1), attrs.evolve(batch, proposed=proposed)).token_ids
    expected, drawn_from = distribution(model, params), np.zeros(VOCAB)
    check(tokens, expected)
    first = slice(0, proposed.offsets[1])
    drawn_from[proposed.ids[first]] = proposed.probabilities[first]
    assert (tokens == proposed.tokens).mean() == pytest.approx(np.minimum(expected, drawn_from).sum(), abs=0.015)
    if drafter == "perfect":
        assert (tokens == proposed.tokens).all()


def test_rows_with_and_without_proposals_in_one_batch() -> None:
    sampler, params = DefaultSampler(1), SamplingParams()
    batch, model = rows_of(params, 50), logits_of(1).expand(50, -1)
    proposed = sampler.propose(model * 0.5, batch, 9)
    some = attrs.evolve(proposed, tokens=np.where(np.arange(50) % 2, proposed.tokens, -1).astype(np.int32))
    mixed = sampler.sample(model, attrs.evolve(batch, proposed=some)).token_ids
    verified = sampler.sample(model, attrs.evolve(batch, proposed=proposed)).token_ids
    plain = sampler.sample(model, batch).token_ids
    assert mixed.tolist() == np.where(np.arange(50) % 2, verified, plain).tolist()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_one_draft(setting: str, drafter: str) -> None:
    params = SamplingParams(**SETTINGS[setting])
    model, (opinion, max_candidates) = logits_of(1), DRAFTERS[drafter]
    verifier = RejectionVerifier(DefaultSampler(1), max_candidates=max_candidates)
    rows = rows_of(params)
    drafts, proposed = verifier.draw(opinion(model).expand(DRAWS, -1), rows)
    tokens = DefaultSampler(1).sample(model.expand(DRAWS, -1), verifying(verifier, rows, drafts, proposed)).token_ids
    expected = distribution(model, params)
    check(tokens, expected)
    accepted = (tokens == drafts).mean()
    drawn_from = np.zeros(VOCAB)
    assert proposed is not None
    first = slice(0, proposed.offsets[1])
    drawn_from[proposed.ids[first]] = proposed.probabilities[first]
    assert accepted == pytest.approx(np.minimum(expected, drawn_from).sum(), abs=0.015)
    if drafter == "perfect":
        assert accepted == 1.0


def test_drafts_come_from_the_distribution_they_state() -> None:
    model, params = logits_of(3), SamplingParams(temperature=0.8)
    drafts, proposed = RejectionVerifier(DefaultSampler(1), max_candidates=9).draw(
        model.expand(DRAWS, -1), rows_of(params)
    )
    assert proposed is not None and proposed.offsets[1] == 9
    stated = np.zeros(VOCAB)
    stated[proposed.ids[:9]] = proposed.probabilities[:9]
    assert stated.sum() == pytest.approx(1)
    check(drafts, stated)


def test_a_draft_that_was_certain() -> None:
    """As from a prompt's own text: no logits, one candidate."""
    model, params = logits_of(5), SamplingParams(temperature=1.1, top_p=0.9)
    verifier, rows = RejectionVerifier(DefaultSampler(1)), rows_of(params)
    expected = distribution(model, params)
    for draft in (int(expected.argmax()), int(expected.argsort()[-5]), 0):
        tokens = DefaultSampler(1).sample(model.expand(DRAWS, -1), verifying(verifier, rows, draft, None)).token_ids
        check(tokens, expected)
        assert (tokens == draft).mean() == pytest.approx(expected[draft], abs=0.015)


def test_two_positions_in_a_row() -> None:
    """The second token's distribution depends on the first one; the joint one is the model's."""
    params = SamplingParams(temperature=0.9, top_k=6)
    firsts, verifier, sampler = logits_of(1), RejectionVerifier(DefaultSampler(1)), DefaultSampler(1)
    seconds = torch.stack([logits_of(100 + token) for token in range(VOCAB)])
    count = DRAWS
    first = batch_of([Drawn(params, seed, [7] * 5) for seed in range(count)])
    rows = [attrs.evolve(first, position=first.position + ahead) for ahead in (0, 1)]
    draft1, kept1 = verifier.draw((firsts + 0.5 * logits_of(2)).expand(count, -1), rows[0])
    draft2, kept2 = verifier.draw(seconds[draft1] * 0.7, rows[1])
    tokens = []
    for row, draft, kept, logits in (
        (rows[0], draft1, kept1, firsts.expand(count, -1)),
        (rows[1], draft2, kept2, seconds[draft1]),
    ):
        tokens.append(sampler.sample(logits, verifying(verifier, row, draft, kept)).token_ids)
    accepted = tokens[0] == draft1
    plain = sampler.sample(seconds[tokens[0]], rows[1]).token_ids  # the next step's, where the first was rejected
    second = np.where(accepted, tokens[1], plain)
    for token in np.bincount(tokens[0]).argsort()[-3:]:
        chosen = second[tokens[0] == token]
        params_row = attrs.evolve(params, logprobs=VOCAB, logprobs_mode="processed")
        out = sampler.sample(seconds[token][None], batch_of([Drawn(params_row)]))
        expected = np.zeros(VOCAB)
        expected[out.top_ids] = np.exp(out.top_logprobs.astype(np.float64))
        check(chosen, expected)


def test_greedy_rows_are_verified_by_the_most_likely_token() -> None:
    model, params = logits_of(1), SamplingParams(temperature=0)
    verifier, row = RejectionVerifier(DefaultSampler(1)), rows_of(params, 1)
    best = int(DefaultSampler(1).sample(model[None], row).token_ids[0])
    for draft in range(VOCAB):
        ready = verifying(verifier, row, draft, None)
        assert DefaultSampler(1).sample(model[None], ready).token_ids.tolist() == [best]


def test_forced_tokens_and_failed_rows_are_as_without_drafts() -> None:
    sampler, logits = DefaultSampler(1), logits_of(1).expand(2, -1).clone()
    logits[1, 3] = float("nan")
    forced = batch_of([Drawn(SamplingParams(forced_token_ids=[9])), Drawn()])
    batch = attrs.evolve(forced, proposed=proposals([3, 3], [3], [1.0]))
    assert sampler.sample(logits, batch).token_ids.tolist() == [9, -1]
    drawn = sampler.propose(logits, batch, 0)
    assert drawn.tokens.tolist() == [9, -1] and drawn.offsets.tolist() == [0, 1, 1]
    assert drawn.ids.tolist() == [9] and drawn.probabilities.tolist() == [1.0]


@pytest.mark.parametrize(
    ("ids", "probabilities", "message"),
    [([5, 3], [0.5, 0.5], "must rise"), ([1, 2], [0.5, 0.5], "hold the proposed token 3"), ([3], [0.0], r"\(0, 1\]")],
)
def test_bad_proposals_are_refused(ids: list[int], probabilities: list[float], message: str) -> None:
    batch = attrs.evolve(batch_of([Drawn()]), proposed=proposals([3], ids, probabilities))
    with pytest.raises(ValueError, match=message):
        DefaultSampler(1).sample(logits_of(1)[None], batch)


def test_a_sampler_that_draws_no_proposals_is_refused() -> None:
    class Plain:
        def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> Any: ...

    with pytest.raises(ConfigError, match="use verifier 'coupled'"):
        make_verifier("rejection", Plain())
    make_verifier("coupled", Plain())
