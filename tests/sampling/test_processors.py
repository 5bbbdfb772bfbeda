"""Logits processors in front of a sampler: who is called with what, and what becomes of a bad answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from deepinfer_core.errors import RequestError
from deepinfer_core.interfaces.logits_processor import LogitsProcessor, RowContext
from deepinfer_core.interfaces.sampler import DraftingSampler, Sampler, SamplerOutput, SamplingBatch
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.sampling.processors import check_extra, with_processors
from deepinfer_core.sampling_params import SamplingParams

PLAIN = DefaultSampler(num_threads=1)
VOCAB = 40


class Component:
    """Counts its calls and answers with ``edit(logits, rows)``."""

    def __init__(self, edit: Callable[[Tensor, Sequence[RowContext]], Any]) -> None:
        self.edit = edit
        self.calls: list[Sequence[RowContext]] = []

    def check_parameters(self, parameters: Any) -> None:
        if parameters == "bad":
            raise ValueError("it must be good, got 'bad'")
        if parameters == "worse":
            raise ZeroDivisionError("oops")

    def process(self, logits: Tensor, rows: Sequence[RowContext]) -> Any:
        self.calls.append(rows)
        return self.edit(logits, rows)


def add(amount: float) -> Component:
    """Adds to the logit of the token that the parameters name."""

    def edit(logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
        for place, context in enumerate(rows):
            logits[place, context.parameters] += amount
        return logits

    return Component(edit)


def row(seed: int, extra: dict[str, Any] | None = None, output: Sequence[int] = (), **fields: Any) -> Drawn:
    return Drawn(SamplingParams(**{"temperature": 0.0, **fields, "extra": extra}), seed, [1, 2, 3], output)


def batch(*rows: Drawn) -> SamplingBatch:
    """With a context for each row that names a component."""
    contexts = {
        place: RowContext(
            f"request {row.seed}", row.params, read_only(row.prompt_token_ids), read_only(row.output_token_ids)
        )
        for place, row in enumerate(rows)
        if row.params.extra
    }
    return attrs.evolve(batch_of(rows), contexts=contexts)


def read_only(ids: ArrayLike) -> NDArray[np.int32]:
    array = np.array(ids, np.int32)
    array.flags.writeable = False
    return array


def logits(rows: int) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(3))


def equal(a: SamplerOutput, b: SamplerOutput) -> bool:
    names = [field.name for field in attrs.fields(SamplerOutput) if field.name != "errors"]
    return all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in names)


def test_without_components_the_sampler_is_the_one_given() -> None:
    assert with_processors(PLAIN, {}) is PLAIN
    component = add(1.0)
    sampler = with_processors(PLAIN, {"a": component})
    assert isinstance(sampler, Sampler) and isinstance(component, LogitsProcessor)


def test_a_step_that_names_no_component_calls_none_and_passes_the_logits_on_uncopied() -> None:
    seen = []

    class Spy:
        def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
            seen.append(logits)
            return PLAIN.sample(logits, batch)

    component, given = add(1.0), logits(2)
    with_processors(Spy(), {"a": component}).sample(given, batch(row(0), row(1)))
    assert component.calls == [] and seen[0] is given


def test_each_component_is_called_once_with_the_rows_that_name_it() -> None:
    first, second, idle = add(100.0), add(50.0), add(1.0)
    sampler = with_processors(PLAIN, {"first": first, "second": second, "idle": idle})
    given = logits(4)
    before = given.clone()
    rows = [row(0), row(1, {"first": 5}, [7, 7]), row(2, {"second": 6, "first": 4}), row(3, {"second": 9})]
    out = sampler.sample(given, batch(*rows))
    assert torch.equal(given, before)
    assert out.token_ids.tolist() == [int(before[0].argmax()), 5, 4, 9]
    assert [[context.request_id for context in call] for call in first.calls] == [["request 1", "request 2"]]
    assert [[context.parameters for context in call] for call in second.calls] == [[6, 9]]
    assert idle.calls == []
    context = first.calls[0][0]
    assert (context.prompt_token_ids.tolist(), context.output_token_ids.tolist()) == ([1, 2, 3], [7, 7])
    assert context.params is rows[1].params
    for ids in (context.prompt_token_ids, context.output_token_ids):
        with pytest.raises(ValueError, match="read-only"):
            ids[0] = 0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        context.request_id = "other"  # type: ignore[misc]


def test_the_chain_runs_in_order_each_fed_by_the_one_before() -> None:
    double = Component(lambda logits, rows: logits * 2)
    for names, best in ((("add", "double"), 2 * 10.0), (("double", "add"), 10.0)):
        components = {name: {"add": add(10.0), "double": double}[name] for name in names}
        asked = row(0, {"add": 5, "double": None}, logprobs=0, logprobs_mode="processed")
        out = with_processors(PLAIN, components).sample(torch.zeros(1, VOCAB), batch(asked))
        assert out.logprobs[0] == pytest.approx(best - math.log(math.exp(best) + VOCAB - 1), abs=1e-5)


def test_a_requests_own_masks_hold_after_the_components() -> None:
    sampler = with_processors(PLAIN, {"a": add(1000.0)})
    out = sampler.sample(logits(1), batch(row(0, {"a": 5}, banned_token_ids=[5])))
    assert out.token_ids[0] not in (-1, 5)


def test_raw_logprobs_are_those_of_the_model() -> None:
    sampler = with_processors(PLAIN, {"a": add(20.0)})
    given = logits(3)
    rows = [row(0, logprobs=2), row(1, {"a": 5}, logprobs=3), row(2, {"a": 6}, logprobs=1, logprobs_mode="processed")]
    out = sampler.sample(given, batch(*rows))
    expected = torch.log_softmax(given.double(), -1)
    assert out.token_ids[1:].tolist() == [5, 6]
    np.testing.assert_allclose(out.logprobs[1], expected[1, 5], atol=1e-5)
    assert out.ranks[1] == 1 + int((given[1] > given[1, 5]).sum())
    assert out.top_ids[2:5].tolist() == expected[1].topk(3).indices.tolist()
    np.testing.assert_allclose(out.top_logprobs[2:5], expected[1].topk(3).values, atol=1e-5)
    assert out.logprobs[2] > -1e-3 and out.top_ids[5] == 6
    alone = PLAIN.sample(given[:1], batch(*rows[:1]))
    assert (out.top_ids[:2] == alone.top_ids).all() and (out.top_logprobs[:2] == alone.top_logprobs).all()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda logits, rows: 1 / 0, "logits processor 'bad' failed: ZeroDivisionError"),
        (lambda logits, rows: None, "must return logits of shape, dtype and device ((2, 40), torch.float32"),
        (lambda logits, rows: logits[:1], "got (torch.Size([1, 40])"),
        (lambda logits, rows: logits.double(), "torch.float64"),
        (lambda logits, rows: logits.numpy(), "must return logits"),
        (lambda logits, rows: logits + float("inf"), "made a logit NaN or +inf"),
        (lambda logits, rows: logits * float("nan"), "made a logit NaN or +inf"),
    ],
)
def test_a_bad_answer_ends_the_rows_that_asked_and_names_the_component(edit: Any, words: str) -> None:
    after = add(1.0)
    sampler = with_processors(PLAIN, {"bad": Component(edit), "after": after})
    given = logits(4)
    rows = [row(0, logprobs=1), row(1, {"bad": 1, "after": 1}, logprobs=1), row(2, {"bad": 1}), row(3, {"after": 2})]
    out = sampler.sample(given, batch(*rows))
    assert out.token_ids[[1, 2]].tolist() == [-1, -1] and sorted(out.errors) == [1, 2]
    assert words in out.errors[1] and "'bad'" in out.errors[2]
    assert [context.request_id for context in after.calls[0]] == ["request 3"]
    fine = with_processors(PLAIN, {"after": add(1.0)}).sample(given[[0, 3]], batch(rows[0], rows[3]))
    assert out.token_ids[[0, 3]].tolist() == fine.token_ids.tolist() and out.logprobs[0] == fine.logprobs[0]


def test_one_spoilt_row_fails_alone_and_minus_infinity_is_an_exclusion() -> None:
    def edit(logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
        logits[0, 3] = float("nan")
        logits[1, logits[1].argmax()] = -float("inf")
        return logits

    given = logits(2)
    out = with_processors(PLAIN, {"a": Component(edit)}).sample(given, batch(row(0, {"a": 1}), row(1, {"a": 1})))
    assert out.token_ids.tolist() == [-1, int(given[1].topk(2).indices[1])]
    assert list(out.errors) == [0]


def test_components_do_not_see_rows_that_the_model_spoilt_and_are_not_blamed() -> None:
    component = add(1.0)
    given = logits(2)
    given[0, 4] = float("nan")
    out = with_processors(PLAIN, {"a": component}).sample(given, batch(row(0, {"a": 1}), row(1, {"a": 2})))
    assert out.token_ids[0] == -1 and out.errors == {}
    assert [context.request_id for context in component.calls[0]] == ["request 1"]


def test_a_row_does_not_notice_its_neighbours() -> None:
    sampler = with_processors(PLAIN, {"a": add(3.0)})
    given = logits(5)
    rows = batch(*[row(i, {"a": i} if i % 2 else None, temperature=0.9, top_p=0.9, logprobs=2) for i in range(5)])
    together = sampler.sample(given, rows)
    for place in range(5):
        alone = sampler.sample(given[[place]], rows.select([place]))
        assert alone.token_ids[0] == together.token_ids[place] and alone.logprobs[0] == together.logprobs[place]
    assert equal(together, sampler.sample(given, rows))


def test_proposals_are_drawn_from_processed_logits() -> None:
    sampler = with_processors(PLAIN, {"a": add(50.0)})
    assert isinstance(sampler, DraftingSampler)
    spoilt = with_processors(PLAIN, {"a": Component(lambda logits, rows: logits * float("nan"))})
    assert isinstance(spoilt, DraftingSampler)
    rows = batch(row(0), row(1, {"a": 5}, temperature=1.0), row(2))
    given = logits(3)
    plain = PLAIN.propose(given, rows, 4).tokens.tolist()
    assert sampler.propose(given, rows, 4).tokens.tolist() == [plain[0], 5, plain[2]]
    assert spoilt.propose(given, rows, 4).tokens.tolist() == [plain[0], -1, plain[2]]


def test_names_and_parameters_are_checked_before_a_request_is_accepted() -> None:
    components = {"bigrams": add(0.0)}
    assert check_extra(SamplingParams(), components) is False
    assert check_extra(SamplingParams(extra={"bigrams": 3}), components) is True
    for extra, words in (
        ({"bigram": 1}, "'bigram', which is no active logits_processor component; did you mean 'bigrams'?"),
        ({"bigrams": "bad"}, "extra['bigrams'] is refused: it must be good, got 'bad'"),
        ({"bigrams": "worse"}, "logits processor 'bigrams' failed: ZeroDivisionError: oops"),
    ):
        with pytest.raises(RequestError) as refusal:
            check_extra(SamplingParams(extra=extra), components)
        assert words in str(refusal.value)
