"""Conformance of ``logits_processor`` components."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.frozen import freeze
from deepinfer_core.interfaces.logits_processor import LogitsProcessor, RowContext
from deepinfer_core.sampling import DefaultSampler
from deepinfer_core.sampling.processors import with_processors
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.testing.sampler import random_logits, rows_of
from deepinfer_core.testing.suite import Suite

VOCAB = 97
_UNSET: Any = object()
#: What is tried where a subclass names no parameters.
_CANDIDATES: tuple[Any, ...] = (True, None, 1, 1.0, {}, [], "on")
#: What a request may hold, whoever sent it.
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, -0.5, 1e300, "", "nonsense", [], [None], [-1], {}, {"no such key": 1}, {"a": {"b": [1]}},
)  # fmt: skip


class LogitsProcessorSuite(Suite):
    """Set :attr:`parameters` to what a request would give the component, if it is none of the usual values."""

    seam = "logits_processor"
    parameters: ClassVar[Any] = _UNSET
    """``SamplingParams.extra`` of the component: plain data."""

    def accepted(self, component: LogitsProcessor) -> Any:
        """Parameters that the component accepts."""
        if self.parameters is not _UNSET:
            component.check_parameters(freeze(self.parameters))
            return freeze(self.parameters)
        for candidate in _CANDIDATES:
            try:
                component.check_parameters(freeze(candidate))
            except ValueError:
                continue
            return freeze(candidate)
        pytest.fail(f"none of {_CANDIDATES} is accepted: set the attribute 'parameters'")

    def contexts(self, component: LogitsProcessor, count: int, seed: int = 0) -> list[RowContext]:
        """Requests with histories of different lengths, some of them without output."""
        rng, parameters = np.random.default_rng(seed), self.accepted(component)
        params = SamplingParams(extra={"component": parameters})
        rows = []
        for i in range(count):
            prompt, output = (rng.integers(0, VOCAB, n).astype(np.int32) for n in (1 + i % 5, (3 * i) % 40))
            for ids in (prompt, output):
                ids.flags.writeable = False
            rows.append(RowContext(f"request-{i}", params, prompt, output, parameters))
        return rows

    def test_parameters_are_accepted_or_refused_with_a_value_error(self, component: LogitsProcessor) -> None:
        """Whatever plain data a request brings, nothing but ValueError comes of it, and it says why."""
        self.accepted(component)
        for value in HOSTILE:
            try:
                component.check_parameters(freeze(value))
            except ValueError as error:
                assert str(error), f"the refusal of {value!r} must say what was expected"

    @pytest.mark.parametrize("rows", [1, 2, 17])
    def test_logits_come_back_in_shape_and_finite(self, component: LogitsProcessor, rows: int) -> None:
        """The same shape, dtype and device; -inf excludes, NaN and +inf are never made."""
        logits = random_logits(rows, vocab=VOCAB)
        logits[:, 3] = -math.inf
        found = component.process(logits.clone(), self.contexts(component, rows))
        assert isinstance(found, Tensor) and (found.shape, found.dtype) == (logits.shape, logits.dtype)
        assert found.device == logits.device
        assert bool((found < math.inf).all()), "NaN or +inf would end the request"

    def test_a_row_depends_on_itself_only(self, component: LogitsProcessor) -> None:
        """Alone and permuted: the same bits."""
        size = 12
        logits, contexts = random_logits(size, vocab=VOCAB), self.contexts(component, size)
        whole = component.process(logits.clone(), contexts).clone()
        order = torch.randperm(size, generator=torch.Generator().manual_seed(2)).tolist()
        permuted = component.process(logits[order].clone(), [contexts[i] for i in order]).clone()
        for place, row in enumerate(order):
            alone = component.process(logits[row : row + 1].clone(), [contexts[row]])
            assert torch.equal(alone[0], whole[row]), f"row {row} alone"
            assert torch.equal(permuted[place], whole[row]), f"row {row} in another place"

    def test_earlier_calls_leave_no_trace(self, component: LogitsProcessor) -> None:
        """A preempted request is asked about again, a step may fail, and requests may share an id over time."""
        logits, contexts = random_logits(5, vocab=VOCAB), self.contexts(component, 5)
        before = component.process(logits.clone(), contexts).clone()
        component.process(random_logits(5, seed=9, vocab=VOCAB), self.contexts(component, 5, seed=1))
        assert torch.equal(component.process(logits.clone(), contexts), before)

    def test_what_it_is_shown_stays_as_it_is(self, component: LogitsProcessor) -> None:
        """Contexts are read, not written, and are good after the call."""
        contexts = self.contexts(component, 6)
        kept = [(c.prompt_token_ids.copy(), c.output_token_ids.copy(), copy.deepcopy(c.parameters)) for c in contexts]
        component.process(random_logits(6, vocab=VOCAB), contexts)
        for context, (prompt, output, parameters) in zip(contexts, kept, strict=True):
            assert np.array_equal(context.prompt_token_ids, prompt), "prompt_token_ids were written to"
            assert np.array_equal(context.output_token_ids, output), "output_token_ids were written to"
            assert context.parameters == parameters, "parameters were changed"

    def test_in_front_of_a_sampler_it_touches_the_rows_that_name_it_only(self, component: LogitsProcessor) -> None:
        """As the engine runs it: no row fails, and requests without it get the tokens they always got."""
        size = 10
        logits, contexts = random_logits(size, vocab=VOCAB), self.contexts(component, size)
        plain = rows_of([{"logprobs": 1}] * size, np.arange(size))
        batch = attrs.evolve(plain, contexts={i: contexts[i] for i in range(0, size, 2)})
        chained = with_processors(DefaultSampler(), {"component": component})
        expected, found = DefaultSampler().sample(logits, plain), chained.sample(logits, batch)
        assert dict(found.errors) == {} and (found.token_ids >= 0).all()
        for i in range(1, size, 2):
            assert found.token_ids[i] == expected.token_ids[i] and found.logprobs[i] == expected.logprobs[i]
