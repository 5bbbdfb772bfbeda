"""Choosing a drafter and a length, and what a drafter that misbehaves can do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.speculator import DraftBatch, Pick, Proposal

DATA = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def state_of(llm: LLM, plugin: str) -> str:
    return next(row.state for row in llm.plugins if row.name == plugin)


def tokens_of(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    outputs = llm.generate([[1, 2, 3], [9] * 40], params, use_tqdm=False)
    llm.engine.scheduler.audit()
    assert [output.error for output in outputs] == [None, None]
    return [output.outputs[0].token_ids for output in outputs]


def test_a_checkpoint_with_a_drafter_uses_it_unless_told_not_to(make_llm: Callable[..., LLM]) -> None:
    assert state_of(make_llm("auto"), "dflash") == "active"
    assert make_llm("auto").engine.worker.num_drafts == 4
    assert state_of(make_llm("off"), "dflash") == "available"
    assert make_llm("off").engine.worker.num_drafts == 0
    assert "mean_accepted_length" not in make_llm("off").get_metrics()


def test_a_named_speculator_takes_the_place_of_the_checkpoints_own(make_llm: Callable[..., LLM]) -> None:
    assert state_of(make_llm(5, fake=True), "dflash") == "available"


def test_more_drafts_than_are_proposed_are_refused() -> None:
    with pytest.raises(ConfigError, match="speculate must be at most 4, the drafts that are proposed, got 5"):
        LLM(DATA, speculate=5)
    for value in (0, -1, True, 2.5, "fast", None):
        with pytest.raises(ConfigError, match="speculate must be 'off', 'auto' or a number"):
            LLM(DATA, speculate=value)
    with pytest.raises(ConfigError, match="verifier must be one of coupled, greedy, rejection, got 'fast'"):
        LLM(DATA, verifier="fast")


def test_a_checkpoint_without_a_drafter(tmp_path: Path) -> None:
    for file in DATA.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((DATA / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    text = config.get("text_config", config)
    text["num_nextn_predict_layers"] = 0
    text["compress_ratios"] = text["compress_ratios"][: text["num_hidden_layers"]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(tmp_path, disable_log_stats=True) as llm:
        assert llm.engine.worker.num_drafts == 0
        tokens_of(llm)
    with pytest.raises(ConfigError, match="speculate=2 needs a drafter"):
        LLM(tmp_path, speculate=2)


def proposing(token_ids: Any, odds: Any = None) -> Callable[[DraftBatch, Pick], Proposal]:
    def propose(batch: DraftBatch, pick: Pick) -> Proposal:
        ids = token_ids(batch)
        return Proposal(ids, None, torch.zeros(ids.shape) if odds is None else odds(batch))

    return propose


def failing(batch: DraftBatch, pick: Pick) -> Proposal:
    pick(0, torch.zeros(len(batch), 512))
    raise RuntimeError("out of ideas")


def out_of_order(batch: DraftBatch, pick: Pick) -> Proposal:
    return Proposal(torch.stack([pick(1, torch.zeros(len(batch), 512))], 1), None, torch.zeros(len(batch), 1))


BAD: dict[str, tuple[Callable[[DraftBatch, Pick], Proposal], str]] = {
    "raises": (failing, "out of ideas"),
    "out of the vocabulary": (proposing(lambda b: torch.full((len(b), 2), 512)), "drafts must be in 0..511"),
    "below -1": (proposing(lambda b: torch.full((len(b), 2), -2)), "drafts must be in 0..511"),
    "too few sequences": (proposing(lambda b: torch.zeros(len(b) + 1, 2, dtype=torch.int64)), "must have token_ids"),
    "floats": (proposing(lambda b: torch.zeros(len(b), 2)), "token_ids must be int64"),
    "NaN": (
        proposing(lambda b: torch.zeros(len(b), 1, dtype=torch.int64), lambda b: torch.full((len(b), 1), torch.nan)),
        "confidences must be numbers",
    ),
    "picks out of order": (out_of_order, "must be picked in order"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_drafter_that_misbehaves_is_left_out(
    make_llm: Callable[..., LLM], speculator: Any, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The requests under way say what they say without it, penalties and all; it is not asked again."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, frequency_penalty=1.0)
    expected = tokens_of(make_llm(), params)
    with LLM(DATA, speculate=5, plugins=[speculator], disable_log_stats=True) as llm:
        speculator.proposal, message = BAD[case]
        before = speculator.num_proposals
        try:
            with caplog.at_level(logging.ERROR):
                assert tokens_of(llm, params) == expected
        finally:
            speculator.proposal = None
        assert speculator.num_proposals == before + 1
        assert message in caplog.text and "speculation is off from here on" in caplog.text


def test_a_drafter_that_changes_what_was_picked_is_left_out_where_it_matters(
    speculator: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def propose(batch: DraftBatch, pick: Pick) -> Proposal:
        picked = pick(0, torch.zeros(len(batch), 512))
        return Proposal((picked[:, None] + 1) % 512, None, torch.zeros(len(batch), 1))

    with LLM(DATA, speculate=5, verifier="rejection", plugins=[speculator], disable_log_stats=True) as llm:
        speculator.proposal = propose
        try:
            tokens_of(llm, SamplingParams(max_tokens=6, seed=1, ignore_eos=True))
        finally:
            speculator.proposal = None
    assert "must be the token that was picked" in caplog.text


def test_the_error_of_a_drafter_names_its_plugin(speculator: Any, caplog: pytest.LogCaptureFixture) -> None:
    with LLM(DATA, speculate=5, plugins=[speculator], disable_log_stats=True) as llm:
        speculator.proposal = speculator.fail
        try:
            tokens_of(llm)
        finally:
            speculator.proposal = None
    assert "FakeSpeculator" in caplog.text.partition("RuntimeError: out of ideas")[2]


def test_every_row_is_observed(make_llm: Callable[..., LLM], speculator: Any) -> None:
    llm = make_llm(5, fake=True)
    speculator.guess = lambda tokens: [1, 2]
    before = speculator.num_observed
    tokens_of(llm)
    assert speculator.num_observed - before >= 43 + 2 * 11


def test_greedy_verification_drafts_for_greedy_requests_only(make_llm: Callable[..., LLM], speculator: Any) -> None:
    llm = make_llm(5, fake=True, verifier="greedy")
    speculator.guess = lambda tokens: [1, 2]
    for temperature, verifies in ((0.0, True), (0.7, False)):
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=6, ignore_eos=True)
        output = llm.generate([[5, 6]], params, use_tqdm=False)[0]
        assert output.metrics is not None
        assert bool(output.metrics.speculation.num_drafted) is verifies


def test_rejection_runs_every_kind_of_request(make_llm: Callable[..., LLM]) -> None:
    """Greedy ones say what they say without drafts, and seeded ones always the same."""
    llm = make_llm(3, verifier="rejection")
    assert tokens_of(llm) == tokens_of(make_llm())
    params = SamplingParams(temperature=0.8, seed=4, top_p=0.9, max_tokens=12, repetition_penalty=1.2, logprobs=1)
    assert tokens_of(llm, params) == tokens_of(llm, params)
    forced = SamplingParams(temperature=0.8, seed=4, max_tokens=6, forced_token_ids=[4, 5, 6])
    assert [tokens[:3] for tokens in tokens_of(llm, forced)] == [[4, 5, 6]] * 2
    assert llm.get_metrics()["verifications"] > 0


def test_nothing_is_drafted_after_a_token_that_ends_the_request(make_llm: Callable[..., LLM], speculator: Any) -> None:
    llm = make_llm(5, fake=True)
    speculator.guess = lambda tokens: [3, 7, 4, 4, 4]
    seen: list[list[int]] = []
    core = llm.engine.core
    core.scheduler, kept = _Recording(core.scheduler, seen), core.scheduler
    try:
        llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=6, stop_token_ids=[7]), use_tqdm=False)
    finally:
        core.scheduler = kept
    assert [3, 7] in seen and all(drafts in ([3, 7], [3]) for drafts in seen)


class _Recording:
    """A scheduler that writes down the drafts it is given."""

    def __init__(self, scheduler: Any, seen: list[list[int]]) -> None:
        self._scheduler, self._seen = scheduler, seen

    def schedule(self, drafts: Any, now: float) -> Any:
        if drafts is not None:
            _, counts, tokens = drafts
            self._seen += [row[:count].tolist() for row, count in zip(tokens, counts.tolist(), strict=True) if count]
        return self._scheduler.schedule(drafts, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)
