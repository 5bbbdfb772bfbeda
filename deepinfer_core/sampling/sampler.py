"""The core's component for the ``sampler`` seam: native code, one pass over a row where that is enough."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import Proposals, SamplerOutput

if TYPE_CHECKING:
    import torch

    from deepinfer_core.interfaces.sampler import SamplingBatch


def usable_cpus() -> int:
    """CPUs this process may run on; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class DefaultSampler:
    """Implements :class:`deepinfer_core.interfaces.sampler.Sampler`; ``csrc/sampler.h`` has the exact rules.

    num_threads: rows sampled at once; None: one per CPU this process may use. Results do not depend on it.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._native = _C.Sampler(num_threads=num_threads or usable_cpus())

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
        """See the protocol. Logits on a device are copied to the host first."""
        if logits.ndim != 2 or logits.shape[0] != len(batch):
            raise ValueError(f"logits must have shape [{len(batch)}, vocab_size], got {tuple(logits.shape)}")
        proposed = batch.proposed
        outputs = self._native.sample(
            logits.detach().cpu().contiguous().numpy(),
            **_columns(batch),
            num_logprobs=batch.num_logprobs,
            processed_logprobs=batch.processed_logprobs,
            proposed=None
            if proposed is None
            else (proposed.tokens, proposed.offsets, proposed.ids, proposed.probabilities),
        )
        return SamplerOutput(*outputs)

    def propose(self, logits: torch.Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        """See :class:`deepinfer_core.interfaces.sampler.DraftingSampler`."""
        drawn = self._native.propose(
            logits.detach().cpu().contiguous().numpy(), max_candidates=max_candidates, **_columns(batch)
        )
        return Proposals(*drawn)


def _columns(batch: SamplingBatch) -> dict[str, Any]:
    """What the native code draws from."""
    return {
        "temperature": batch.temperature,
        "top_k": batch.top_k,
        "top_p": batch.top_p,
        "min_p": batch.min_p,
        "seed": batch.seed,
        "position": batch.position,
        "forced": batch.forced,
        "bias": batch.bias,
        "seen": batch.seen,
        "penalties": batch.penalties,
        "allowed": batch.allowed,
        "banned": batch.banned,
        "masks": batch.masks,
    }
