"""The sampler: finds what may be drawn, and leaves the rest to the core's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.sampler import LogitEdits, ProposedToken, SamplerOutput, SamplingRow
from deepinfer_core.sampling import DefaultSampler, edited_logits

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

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SamplerOutput:
        """See the protocol. What is kept becomes the row's only allowed ids.

        So seeds, forced ids, logprobs and rows from which nothing can be drawn are as ever.
        """
        on_host = logits.detach().cpu()
        return self._default.sample(on_host, self._all_narrowed(on_host, rows))

    def propose(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], max_candidates: int
    ) -> Sequence[ProposedToken | None]:
        """See ``DraftingSampler``, which a sampler need not be."""
        on_host = logits.detach().cpu()
        return self._default.propose(on_host, self._all_narrowed(on_host, rows), max_candidates)

    def _all_narrowed(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SamplingRow]:
        return [self._narrowed(values, row) for values, row in zip(logits.numpy(), rows, strict=True)]

    def _narrowed(self, logits: NDArray[np.float32], row: SamplingRow) -> SamplingRow:
        if row.params.is_greedy:
            return row  # the largest logit is always kept
        edited = edited_logits(logits, row)
        values = edited[edited != -np.inf].astype(np.float64)
        if not len(values) or not np.isfinite(values).all():
            return row  # nothing can be drawn, as the core's sampler will report
        kept = np.flatnonzero(edited >= values.max() - self._n * values.std())
        edits = attrs.evolve(row.edits or LogitEdits(), allowed=kept.astype(np.int32))
        return attrs.evolve(row, edits=edits)
