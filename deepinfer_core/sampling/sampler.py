"""The core's component for the ``sampler`` seam: native code, one pass over a row where that is enough."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import SamplerOutput, SamplingRow

if TYPE_CHECKING:
    import torch

_INT32_MAX = 2**31 - 1


def _usable_cpus() -> int:
    """CPUs this process may run on; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class DefaultSampler:
    """Implements :class:`deepinfer_core.interfaces.sampler.Sampler`; ``csrc/sampler.h`` has the exact rules.

    num_threads: rows sampled at once; None: one per CPU this process may use. Results do not depend on it.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._native = _C.Sampler(num_threads=num_threads or _usable_cpus())

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SamplerOutput:
        """See the protocol. Logits on a device are copied to the host first."""
        if logits.ndim != 2 or logits.shape[0] != len(rows):
            raise ValueError(f"logits must have shape [{len(rows)}, vocab_size], got {tuple(logits.shape)}")
        params = [row.params for row in rows]
        banned = [row.banned for row in rows]
        outputs = self._native.sample(
            logits.detach().cpu().contiguous().numpy(),
            temperature=np.array([p.temperature for p in params], np.float64),
            top_k=np.array([min(p.top_k, _INT32_MAX) for p in params], np.int32),
            top_p=np.array([p.top_p for p in params], np.float64),
            min_p=np.array([p.min_p for p in params], np.float64),
            seed=np.array([row.seed for row in rows], np.uint64),
            position=np.array([row.position for row in rows], np.int64),
            num_logprobs=np.array([-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
            banned_offsets=np.array([0, *accumulate(map(len, banned))], np.int64),
            banned_ids=np.array([*chain.from_iterable(banned)], np.int32),
        )
        return SamplerOutput(*outputs)
