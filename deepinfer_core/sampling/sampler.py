"""The core's component for the ``sampler`` seam: native code, one pass over a row where that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import LogitEdits, ProposedToken, SamplerOutput, SamplingRow

if TYPE_CHECKING:
    import torch

_INT32_MAX = 2**31 - 1
_NO_EDITS = LogitEdits()
_NOTHING_PROPOSED = ProposedToken(-1, np.empty(0, np.int32), np.empty(0))


class DefaultSampler:
    """Implements :class:`deepinfer_core.interfaces.sampler.Sampler`; ``csrc/sampler.h`` has the exact rules.

    In an engine's step it runs on the engine's threads, whoever made it.

    num_threads: of its own, for calls elsewhere; None: those that all such samplers share, one per usable CPU. Results
        do not depend on it.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._native = _C.Sampler(num_threads=num_threads)

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SamplerOutput:
        """See the protocol. Logits on a device are copied to the host first."""
        if logits.ndim != 2 or logits.shape[0] != len(rows):
            raise ValueError(f"logits must have shape [{len(rows)}, vocab_size], got {tuple(logits.shape)}")
        outputs = self._native.sample(
            logits.detach().cpu().contiguous().numpy(), **_columns(rows), **_sampled_columns(rows)
        )
        return SamplerOutput(*outputs)

    def propose(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], max_candidates: int
    ) -> list[ProposedToken | None]:
        """See :class:`deepinfer_core.interfaces.sampler.DraftingSampler`."""
        tokens, offsets, ids, probabilities = self._native.propose(
            logits.detach().cpu().contiguous().numpy(), max_candidates=max_candidates, **_columns(rows)
        )
        bounds = offsets.tolist()
        return [
            None if token < 0 else ProposedToken(token, ids[begin:end], probabilities[begin:end])
            for token, begin, end in zip(tokens.tolist(), bounds, bounds[1:], strict=False)
        ]


def _columns(rows: Sequence[SamplingRow]) -> dict[str, Any]:
    """What the native code needs to draw from rows; what is seldom needed only if some row needs it."""
    params = [row.params for row in rows]
    columns: dict[str, Any] = {
        "temperature": np.array([p.temperature for p in params], np.float64),
        "top_k": np.array([min(p.top_k, _INT32_MAX) for p in params], np.int32),
        "top_p": np.array([p.top_p for p in params], np.float64),
        "min_p": np.array([p.min_p for p in params], np.float64),
        "seed": np.array([row.seed for row in rows], np.uint64),
        "position": np.array([row.position for row in rows], np.int64),
    }
    forced = [row.forced for row in rows]
    if forced.count(None) < len(rows):
        columns["forced"] = np.array([-1 if token is None else token for token in forced], np.int32)
    edits = [row.edits for row in rows]
    if edits.count(None) < len(rows):
        columns |= _edits([each or _NO_EDITS for each in edits])
    masks = [row.mask for row in rows]
    if any(mask is not None for mask in masks):
        columns["masks"] = masks
    return columns


def _sampled_columns(rows: Sequence[SamplingRow]) -> dict[str, Any]:
    """What it needs besides to report logprobs and to verify proposed tokens."""
    params = [row.params for row in rows]
    columns: dict[str, Any] = {
        "num_logprobs": np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32)
    }
    if any(p.logprobs_mode == "processed" for p in params):
        columns["processed_logprobs"] = np.array([p.logprobs_mode == "processed" for p in params])
    if any(row.proposed is not None for row in rows):
        proposed = [row.proposed or _NOTHING_PROPOSED for row in rows]
        lists = _lists([each.token_ids for each in proposed], [each.probabilities for each in proposed])
        columns["proposed"] = (np.array([each.token for each in proposed], np.int32), *lists)
    return columns


def _edits(edits: Sequence[LogitEdits]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if any(len(each.bias_ids) for each in edits):
        columns["bias"] = _lists([each.bias_ids for each in edits], [each.bias for each in edits])
    if any(len(each.seen_ids) for each in edits):
        columns["seen"] = _lists([each.seen_ids for each in edits], [each.seen_counts for each in edits])
        columns["penalties"] = np.array(
            [(each.repetition_penalty, each.frequency_penalty, each.presence_penalty) for each in edits]
        )
    if any(len(each.allowed) for each in edits):
        columns["allowed"] = _lists([each.allowed for each in edits])
    if any(len(each.banned) for each in edits):
        columns["banned"] = _lists([each.banned for each in edits])
    return columns


def _lists(*arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Offsets int64 ``[R + 1]``, then each row's arrays end to end."""
    offsets = np.array([0, *accumulate(map(len, arrays[0]))], np.int64)
    return offsets, *(np.concatenate(each) for each in arrays)
