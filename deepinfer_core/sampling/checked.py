"""What a sampler plugin returns is checked before anything believes it."""

from __future__ import annotations

from collections.abc import Mapping
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
        self._refuse("wrong output", _problem(output, len(batch), int(logits.shape[1])))
        return output

    def _refuse(self, what: str, problem: str | None) -> None:
        if problem is not None:
            cls = type(self._sampler)
            raise PluginError(f"the sampler {cls.__module__}.{cls.__qualname__} returned a {what}: {problem}")


class CheckedDraftingSampler(CheckedSampler):
    """The same of a sampler that draws proposals."""

    _sampler: DraftingSampler

    def propose(self, logits: Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        """See the protocol. Raises PluginError for proposals that break it; their probabilities are checked in use."""
        proposals = self._sampler.propose(logits, batch, max_candidates)
        self._refuse("wrong proposal", _proposals_problem(proposals, len(batch), int(logits.shape[1])))
        return proposals


def _problem(output: Any, count: int, vocab_size: int) -> str | None:
    rows = {"token_ids": np.int32, "logprobs": np.float32, "ranks": np.int32}
    lists = {"top_ids": np.int32, "top_logprobs": np.float32}
    return _shape_problem(output, count, "top_offsets", rows, lists) or _id_problem(
        output, {"token_ids": -1, "top_ids": -1}, vocab_size
    )


def _proposals_problem(proposals: Any, count: int, vocab_size: int) -> str | None:
    lists = {"ids": np.int32, "probabilities": np.float64}
    return _shape_problem(proposals, count, "offsets", {"tokens": np.int32}, lists) or _id_problem(
        proposals, {"tokens": -1, "ids": 0}, vocab_size
    )


def _shape_problem(
    output: Any, count: int, bounds: str, rows: Mapping[str, type], lists: Mapping[str, type]
) -> str | None:
    """Of the columns with one number per row, and of those with a list per row."""
    offsets = getattr(output, bounds, None)
    if not isinstance(offsets, np.ndarray) or offsets.shape != (count + 1,) or offsets.dtype != np.int64:
        return f"{bounds} must be [{count + 1}] int64, got {_describe(offsets)}"
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return f"{bounds} must begin with 0 and never fall, got {offsets.tolist()}"
    for columns, length in ((rows, count), (lists, int(offsets[-1]))):
        for name, dtype in columns.items():
            array = getattr(output, name, None)
            if not isinstance(array, np.ndarray) or array.shape != (length,) or array.dtype != dtype:
                return f"{name} must be [{length}] {np.dtype(dtype).name}, got {_describe(array)}"
    return None


def _id_problem(output: Any, smallest: Mapping[str, int], vocab_size: int) -> str | None:
    for name, least in smallest.items():
        ids = getattr(output, name)
        if ids.size and (ids.min() < least or ids.max() >= vocab_size):
            return f"{name} must be in [{least}, {vocab_size}), got {ids.min()} to {ids.max()}"
    return None


def _describe(array: object) -> str:
    if isinstance(array, np.ndarray):
        return f"{list(array.shape)} {array.dtype}"
    return type(array).__name__
