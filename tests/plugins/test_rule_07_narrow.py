"""Rule 7, narrow seams: what plugins are given cannot be changed through them, and what they return is checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from deepinfer_core import LLM, SamplingParams, hookimpl
from deepinfer_core.errors import GenerationError, PluginError
from deepinfer_core.interfaces.sampler import DraftingSampler, Proposals, SamplerOutput
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.sampling.checked import CheckedSampler, checked

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1, extra={"vandal": 1})


class Vandal:
    """Changes whatever it is given, as far as that lets it."""

    seam, name = "logits_processor", "vandal"

    def __init__(self) -> None:
        self.refused: list[str] = []

    def attempt(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (AttributeError, TypeError, ValueError):
            self.refused.append(what)

    @hookimpl
    def on_request_added(self, request: Any) -> None:
        self.attempt("request", lambda: setattr(request, "request_id", "x"))
        self.attempt("prompt", lambda: request.prompt_token_ids.append(1))
        self.attempt("params", lambda: setattr(request.params, "max_tokens", 1))
        self.attempt("extra", lambda: request.params.extra.clear())

    @hookimpl
    def post_schedule(self, plan: Any) -> None:
        self.attempt("plan", lambda: plan.starts.__setitem__(0, 9))
        self.attempt("handles", lambda: setattr(plan, "handles", []))

    @hookimpl
    def process_output(self, outputs: Any) -> None:
        for output in outputs:
            self.deface(output)

    @hookimpl
    def on_request_finished(self, output: Any) -> None:
        self.deface(output)

    def deface(self, output: Any) -> None:
        output.prompt_token_ids.clear()
        output.outputs[0].token_ids.clear()
        output.outputs[0].logprobs.clear()
        output.metrics.arrival_time = 0.0
        output.outputs.clear()

    def check_parameters(self, parameters: Any) -> None: ...

    def process(self, logits: Any, rows: Any) -> Any:
        for row in rows:
            self.attempt("row", lambda row=row: setattr(row, "request_id", "x"))  # type: ignore[misc]
            self.attempt("history", lambda row=row: row.prompt_token_ids.fill(0))  # type: ignore[misc]
            self.attempt("writeable", lambda row=row: row.output_token_ids.setflags(write=True))  # type: ignore[misc]
        return logits


def test_a_plugin_that_changes_what_it_is_given_changes_nothing() -> None:
    def generated(*plugins: object) -> list[Any]:
        params = PARAMS if plugins else attrs.evolve(PARAMS, extra={})
        with LLM(MODEL, plugins=plugins, num_pages=8, max_num_seqs=2, disable_log_stats=True) as llm:
            outputs = llm.generate(["Hello", [7, 8, 9]], params, use_tqdm=False)
            llm.engine.scheduler.audit()
        assert all(output.metrics is not None and output.metrics.arrival_time > 0 for output in outputs)
        return [(output.prompt_token_ids, output.outputs) for output in outputs]

    vandal = Vandal()
    assert generated(vandal) == generated()
    assert {"request", "prompt", "params", "extra", "plan", "handles", "row", "history", "writeable"} == set(
        vandal.refused
    )


# -- what a sampler returns

GOOD = SamplerOutput(
    token_ids=np.array([3, -1], np.int32),
    logprobs=np.array([-0.5, np.nan], np.float32),
    ranks=np.array([1, 0], np.int32),
    top_offsets=np.array([0, 2, 2], np.int64),
    top_ids=np.array([3, 0], np.int32),
    top_logprobs=np.array([-0.5, -2.0], np.float32),
)
BATCH = batch_of([Drawn(), Drawn(seed=1)])


class Returning:
    """A sampler that returns what it is made with."""

    def __init__(self, output: Any) -> None:
        self.output = output

    def sample(self, logits: Any, batch: Any) -> Any:
        return self.output


def sampled(output: Any) -> Any:
    return CheckedSampler(Returning(output)).sample(torch.zeros(2, 5), BATCH)


def test_a_good_output_passes_and_the_cores_own_sampler_is_left_alone() -> None:
    assert sampled(GOOD) is GOOD
    own = DefaultSampler()
    assert checked(own) is own


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"token_ids": np.array([3, 5], np.int32)}, "token_ids must be in [-1, 5), got 3 to 5"),
        ({"token_ids": np.array([-2, 0], np.int32)}, "token_ids must be in [-1, 5), got -2 to 0"),
        ({"token_ids": np.array([3], np.int32)}, "token_ids must be [2] int32, got [1] int32"),
        ({"token_ids": np.array([3, 0])}, "token_ids must be [2] int32, got [2] int64"),
        ({"token_ids": [3, 0]}, "token_ids must be [2] int32, got list"),
        ({"logprobs": np.zeros(2)}, "logprobs must be [2] float32, got [2] float64"),
        ({"top_ids": np.array([3], np.int32)}, "top_ids must be [2] int32, got [1] int32"),
        ({"top_ids": np.array([3, 9], np.int32)}, "top_ids must be in [-1, 5), got 3 to 9"),
        ({"top_offsets": np.array([0, 2, 1], np.int64)}, "top_offsets must begin with 0 and never fall, got [0, 2, 1]"),
        ({"top_offsets": None}, "top_offsets must be [3] int64, got NoneType"),
    ],
)
def test_a_wrong_output_names_the_sampler_and_what_is_wrong(change: dict[str, Any], problem: str) -> None:
    message = f"Returning returned a wrong output: {problem}"
    with pytest.raises(PluginError, match=re.escape(message)):
        sampled(attrs.evolve(GOOD, **change))


PROPOSALS = Proposals(
    tokens=np.array([3, -1], np.int32),
    offsets=np.array([0, 2, 2], np.int64),
    ids=np.array([0, 3], np.int32),
    probabilities=np.array([0.25, 0.75]),
)


class Proposing(Returning):
    """The same with proposals."""

    def propose(self, logits: Any, batch: Any, max_candidates: int) -> Any:
        return self.output


def proposed(proposals: Any) -> Any:
    sampler = checked(Proposing(proposals))
    assert isinstance(sampler, DraftingSampler)
    return sampler.propose(torch.zeros(2, 5), BATCH, 2)


def test_good_proposals_pass_and_a_sampler_without_them_gets_none() -> None:
    assert proposed(PROPOSALS) is PROPOSALS
    assert not isinstance(checked(Returning(GOOD)), DraftingSampler)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokens": np.array([3, 5], np.int32)}, "tokens must be in [-1, 5), got 3 to 5"),
        ({"tokens": np.array([3, 0])}, "tokens must be [2] int32, got [2] int64"),
        ({"ids": np.array([-1, 3], np.int32)}, "ids must be in [0, 5), got -1 to 3"),
        ({"probabilities": np.ones(2, np.float32)}, "probabilities must be [2] float64, got [2] float32"),
        ({"offsets": np.array([1, 2, 2])}, "offsets must begin with 0 and never fall, got [1, 2, 2]"),
    ],
)
def test_wrong_proposals_name_the_sampler_and_what_is_wrong(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"Proposing returned a wrong proposal: {problem}")):
        proposed(attrs.evolve(PROPOSALS, **change))


def test_nothing_at_all_is_a_wrong_output() -> None:
    with pytest.raises(PluginError, match=re.escape("top_offsets must be [3] int64, got NoneType")):
        sampled(None)


def test_garbage_ends_the_requests_of_its_step_and_the_engine_goes_on() -> None:
    class Moody:
        seam, name = "sampler", "moody"

        def __init__(self) -> None:
            self.own, self.is_well = DefaultSampler(), False

        def sample(self, logits: Any, batch: Any) -> Any:
            output = self.own.sample(logits, batch)
            return output if self.is_well else attrs.evolve(output, token_ids=output.token_ids + np.int32(10**6))

    moody = Moody()
    params = attrs.evolve(PARAMS, extra={})
    with LLM(MODEL, plugins=[moody], num_pages=8, disable_log_stats=True) as llm:
        (failed,) = llm.generate(["Hello"], params, use_tqdm=False)
        moody.is_well = True
        (served,) = llm.generate(["Hello"], params, use_tqdm=False)
        llm.engine.scheduler.audit()
    assert failed.error is not None and "Moody returned a wrong output: token_ids must be in [-1, " in failed.error
    assert served.error is None and len(served.outputs[0].token_ids) == 4


def test_a_sampler_derived_from_the_cores_is_checked_too() -> None:
    class Derived(DefaultSampler):
        seam, name = "sampler", "derived"

        def sample(self, logits: Any, rows: Any) -> Any:
            output = super().sample(logits, rows)
            return attrs.evolve(output, token_ids=np.full_like(output.token_ids, 10**6))

    with pytest.raises(PluginError, match=r"Derived returned a wrong output: token_ids must be in \[-1, 5\)"):
        checked(Derived()).sample(torch.zeros(2, 5), BATCH)
    assert isinstance(checked(Derived()), DraftingSampler), "it still draws drafts"
    params, pieces = attrs.evolve(PARAMS, extra={}), []
    with LLM(MODEL, plugins=[Derived()], num_pages=8, disable_log_stats=True) as llm:
        with pytest.raises(GenerationError, match=r"PluginError: the sampler .*Derived returned a wrong output"):
            for piece in llm.stream("Hello", params):
                pieces.append((piece.token_ids, piece.text))
        (whole,) = llm.generate(["Hello"], params, use_tqdm=False)
    assert all(piece == ([], "") for piece in pieces), "nothing of it is delivered"
    assert (whole.outputs[0].token_ids, whole.outputs[0].text) == ([], "")
