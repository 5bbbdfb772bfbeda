"""The sampler: finds what may be drawn, and leaves the rest to the core's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.sampler import Proposals, SamplerOutput, SamplingBatch
from deepinfer_core.sampling import DefaultSampler, edited_logits, narrowed

if TYPE_CHECKING:
    import torch


def _positive(config: Config, field: attrs.Attribute[float], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{field.name} must be > 0, got {value!r}")


@attrs.frozen(kw_only=True)
class Config:
    """``n``: how many standard deviations below the largest logit a token may be."""

    n: float = attrs.field(default=1.0, validator=_positive, metadata={"help": "standard deviations, > 0"})


class TopNSigma:
    """Implements the ``sampler`` seam.

    Logits of noise are spread like a bell around their mean; those that mean something stand out of it. Temperature
    scales a logit's distance and the deviation alike, so what is kept does not depend on it. top_k, top_p and min_p
    then choose among what is kept.
    """

    def __init__(self, config: Config) -> None:
        self._n = config.n
        self._default = DefaultSampler()

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
        """See the protocol. What is not kept is masked.

        So seeds, forced ids, logprobs and rows from which nothing can be drawn are as ever.
        """
        on_host = logits.detach().cpu()
        return self._default.sample(on_host, self._narrowed(on_host.numpy(), batch))

    def propose(self, logits: torch.Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        """See ``DraftingSampler``, which a sampler need not be."""
        on_host = logits.detach().cpu()
        return self._default.propose(on_host, self._narrowed(on_host.numpy(), batch), max_candidates)

    def _narrowed(self, logits: NDArray[np.float32], batch: SamplingBatch) -> SamplingBatch:
        edited = edited_logits(logits, batch)
        largest = edited.max(axis=1)
        # A greedy row keeps its largest logit anyway, and where nothing can be drawn the core's sampler says so.
        rows = np.flatnonzero((batch.temperature > 0) & np.isfinite(largest))
        values = edited[rows].astype(np.float64)
        deviations = values.std(axis=1, where=values > -np.inf)
        return narrowed(batch, rows, values >= (largest[rows] - self._n * deviations)[:, None])
