"""The core's component for the ``sampler`` seam: native code, one pass over a row where that is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import Proposals, SamplerOutput

if TYPE_CHECKING:
    import torch

    from deepinfer_core.interfaces.sampler import SamplingBatch


class DefaultSampler:
    """Implements :class:`deepinfer_core.interfaces.sampler.Sampler`; ``csrc/sampler.h`` has the exact rules.

    In an engine's step it runs on the engine's threads, whoever made it.

    num_threads: of its own, for calls elsewhere; None: those that all such samplers share, one per usable CPU. Results
        do not depend on it.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._native = _C.Sampler(num_threads=num_threads)

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
        """See the protocol. Logits on a device are copied to the host first."""
        if logits.ndim != 2 or logits.shape[0] != len(batch):
            raise ValueError(f"logits must have shape [{len(batch)}, vocab_size], got {tuple(logits.shape)}")
        drawn = batch.proposed
        outputs = self._native.sample(
            logits.detach().cpu().contiguous().numpy(),
            **_columns(batch),
            num_logprobs=batch.num_logprobs,
            processed_logprobs=batch.processed_logprobs,
            proposed=None if drawn is None else (drawn.tokens, drawn.offsets, drawn.ids, drawn.probabilities),
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
