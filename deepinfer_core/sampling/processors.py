"""Runs the ``logits_processor`` components in front of a sampler."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core import _C
from deepinfer_core.errors import RequestError, nearest
from deepinfer_core.interfaces.logits_processor import RowContext
from deepinfer_core.interfaces.sampler import DraftingSampler

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.interfaces.logits_processor import LogitsProcessor
    from deepinfer_core.interfaces.sampler import Proposals, Sampler, SamplerOutput, SamplingBatch
    from deepinfer_core.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


def check_extra(params: SamplingParams, processors: Mapping[str, LogitsProcessor]) -> bool:
    """Whether a component acts on a request with these parameters.

    Raises RequestError for a name in ``extra`` that no active component has, and where one refuses its parameters.
    """
    for name, parameters in params.extra.items():
        if name not in processors:
            known = ", ".join(processors) or "none"
            raise RequestError(
                f"extra names {name!r}, which is no active logits_processor component{nearest(name, processors)} "
                f"(active: {known}); name its plugin in plugins=[...]"
            )
        try:
            processors[name].check_parameters(parameters)
        except ValueError as error:
            raise RequestError(f"extra[{name!r}] is refused: {error}") from error
        except Exception as error:
            logger.exception("logits processor %r failed while checking its parameters", name)
            raise RequestError(f"logits processor {name!r} failed: {type(error).__name__}: {error}") from error
    return bool(params.extra)


def with_processors(sampler: Sampler, processors: Mapping[str, LogitsProcessor]) -> Sampler:
    """The sampler, with components by name in front of it, called in this order; itself if there are none."""
    if not processors:
        return sampler
    kind = ProcessedDraftingSampler if isinstance(sampler, DraftingSampler) else ProcessedSampler
    return kind(sampler, processors)


class ProcessedSampler:
    """A sampler whose logits go through components first, where a row's request names them."""

    def __init__(self, sampler: Sampler, processors: Mapping[str, LogitsProcessor]) -> None:
        self._sampler = sampler
        self._processors = dict(processors)
        self._native = _C.Sampler()

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """See the protocol. Raw logprobs are of the logits as given here."""
        if not batch.contexts:
            return self._sampler.sample(logits, batch)
        step = self._processed(logits, batch)
        output = self._sampler.sample(step.logits, batch)
        return attrs.evolve(self._with_raw_logprobs(output, logits, batch), errors={**output.errors, **step.errors})

    def _processed(self, logits: Tensor, batch: SamplingBatch) -> _Step:
        step = _Step(logits, batch.contexts)
        for name, processor in self._processors.items():
            step.run(name, processor)
        return step

    def _with_raw_logprobs(self, output: SamplerOutput, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """The sampler saw processed logits: replace the raw logprobs that it made of them."""
        is_raw = (batch.num_logprobs >= 0) & ~batch.processed_logprobs & (output.token_ids >= 0)
        places = [place for place in batch.contexts if is_raw[place]]
        if not places:
            return output
        _, logprobs, ranks, offsets, top_ids, top_logprobs = self._native.score(
            logits[places].detach().cpu().numpy(),
            token_ids=output.token_ids[places],
            num_logprobs=np.diff(output.top_offsets)[places].astype(np.int32),
        )
        result = attrs.evolve(
            output,
            logprobs=output.logprobs.copy(),
            ranks=output.ranks.copy(),
            top_ids=output.top_ids.copy(),
            top_logprobs=output.top_logprobs.copy(),
        )
        result.logprobs[places], result.ranks[places] = logprobs, ranks
        for i, place in enumerate(places):
            to, source = _part(output.top_offsets, place), _part(offsets, i)
            result.top_ids[to], result.top_logprobs[to] = top_ids[source], top_logprobs[source]
        return result


class ProcessedDraftingSampler(ProcessedSampler):
    """The same of a sampler that draws proposals."""

    _sampler: DraftingSampler

    def propose(self, logits: Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        """See the protocol."""
        if batch.contexts:
            logits = self._processed(logits, batch).logits
        return self._sampler.propose(logits, batch, max_candidates)


def _part(offsets: NDArray[np.int64], place: int) -> slice:
    return slice(int(offsets[place]), int(offsets[place + 1]))


class _Step:
    """One step's logits on their way through the components: a copy, ``errors`` by row."""

    def __init__(self, logits: Tensor, contexts: Mapping[int, RowContext]) -> None:
        self.logits = logits.clone()
        self.errors: dict[int, str] = {}
        valid = _is_valid(logits).tolist()  # where the model's own logits are not, no component is to blame
        self._contexts = {place: context for place, context in contexts.items() if valid[place]}

    def run(self, name: str, processor: LogitsProcessor) -> None:
        """Let one component act on the rows that name it; rows it spoils are left to fail in the sampler."""
        places = [place for place, context in self._contexts.items() if name in context.params.extra]
        if not places:
            return
        contexts = [self._context(place, name) for place in places]
        try:
            processed = processor.process(self.logits[places], contexts)
            _check_result(processed, self.logits, len(places))
        except Exception as error:
            logger.exception("logits processor %r failed; its %d requests end with an error", name, len(places))
            self._fail(places, f"logits processor {name!r} failed: {type(error).__name__}: {error}")
            return
        self.logits[places] = processed
        spoilt = (~_is_valid(processed)).nonzero().flatten().tolist()
        self._fail([places[i] for i in spoilt], f"logits processor {name!r} made a logit NaN or +inf")

    def _context(self, place: int, name: str) -> RowContext:
        context = self._contexts[place]
        return attrs.evolve(context, parameters=context.params.extra[name])

    def _fail(self, places: Sequence[int], error: str) -> None:
        for place in places:
            self.errors[place] = error
            self.logits[place] = float("nan")
            del self._contexts[place]


def _is_valid(logits: Tensor) -> Tensor:
    """``[R]`` bool: whether a row has neither NaN nor +inf."""
    return (logits < float("inf")).all(dim=1)


def _check_result(processed: Tensor, logits: Tensor, count: int) -> None:
    expected = (count, logits.shape[1]), logits.dtype, logits.device
    found = tuple(getattr(processed, name, None) for name in ("shape", "dtype", "device"))
    if found != expected:
        raise TypeError(f"process must return logits of shape, dtype and device {expected}, got {found}")
