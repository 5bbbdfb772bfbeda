"""What a sampler plugin returns is checked before anything believes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.sampler import DraftingSampler
from deepinfer_core.sampling.sampler import DefaultSampler

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.interfaces.sampler import Proposals, Sampler, SamplerOutput, SamplingBatch


def checked(sampler: Sampler) -> Sampler:
    """The sampler, with its outputs checked; the core's own as it is, but not what is derived from it."""
    if type(sampler) is DefaultSampler:
        return sampler
    return CheckedDraftingSampler(sampler) if isinstance(sampler, DraftingSampler) else CheckedSampler(sampler)


class CheckedSampler:
    """A sampler whose outputs have the shapes, dtypes and ranges that the protocol promises."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """See the protocol. Raises PluginError for an output that breaks it."""
        output = self._sampler.sample(logits, batch)
        problem = _problem(output, len(batch), int(logits.shape[1]))
        if problem is not None:
            cls = type(self._sampler)
            raise PluginError(f"the sampler {cls.__module__}.{cls.__qualname__} returned a wrong output: {problem}")
        return output


class CheckedDraftingSampler(CheckedSampler):
    """The same of a sampler that draws proposals, which are checked where they are used."""

    _sampler: DraftingSampler

    def propose(self, logits: Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        """See the protocol."""
        return self._sampler.propose(logits, batch, max_candidates)


def _problem(output: Any, count: int, vocab_size: int) -> str | None:
    offsets = getattr(output, "top_offsets", None)
    if not isinstance(offsets, np.ndarray) or offsets.shape != (count + 1,) or offsets.dtype != np.int64:
        return f"top_offsets must be [{count + 1}] int64, got {_describe(offsets)}"
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return f"top_offsets must begin with 0 and never fall, got {offsets.tolist()}"
    total = int(offsets[-1])
    for name, length, dtype in (
        ("token_ids", count, np.int32),
        ("logprobs", count, np.float32),
        ("ranks", count, np.int32),
        ("top_ids", total, np.int32),
        ("top_logprobs", total, np.float32),
    ):
        array = getattr(output, name, None)
        if not isinstance(array, np.ndarray) or array.shape != (length,) or array.dtype != dtype:
            return f"{name} must be [{length}] {np.dtype(dtype).name}, got {_describe(array)}"
    for name in ("token_ids", "top_ids"):
        ids = getattr(output, name)
        if ids.size and (ids.min() < -1 or ids.max() >= vocab_size):
            return f"{name} must be in [-1, {vocab_size}), got {ids.min()} to {ids.max()}"
    return None


def _describe(array: object) -> str:
    if isinstance(array, np.ndarray):
        return f"{list(array.shape)} {array.dtype}"
    return type(array).__name__
