"""How drafts are drawn and verified. Whichever verifier it is: a draft is accepted if the row before it draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.sampler import DraftingSampler, ProposedToken

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.interfaces.sampler import Sampler, SamplingRow
    from deepinfer_core.sampling_params import SamplingParams


class Verifier(Protocol):
    """Draws drafts from a drafter's logits, and prepares the rows that decide about them."""

    def accepts(self, params: SamplingParams) -> bool:
        """Whether drafts of such a request can be verified; without it nothing is drafted for the request."""
        ...

    def draw(
        self, logits: Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[NDArray[np.int32], Sequence[ProposedToken | None]]:
        """One draft per row ``[S]``, -1 where none could be drawn, and what :meth:`rows` needs to know of it.

        logits: ``[S, V]`` float32, left unchanged. rows: what the model's own token will be drawn by, if the drafts
        before it are accepted.
        """
        ...

    def rows(
        self, rows: Sequence[SamplingRow], drafts: Sequence[int], proposed: Sequence[ProposedToken | None]
    ) -> Sequence[SamplingRow]:
        """The rows that verify the drafts: ``1 + len(drafts)``, made of those by which a request draws its tokens."""
        ...


class CoupledVerifier:
    """Drafts and tokens are drawn with the same noise: of the request's seed, the position and the token.

    The model's rows are sampled as if nothing had been drafted, so the tokens are those without drafts. They agree
    often because the noise is shared. At temperature 0 this is the comparison with the most likely token.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def accepts(self, params: SamplingParams) -> bool:
        """Any."""
        return True

    def draw(
        self, logits: Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[NDArray[np.int32], Sequence[ProposedToken | None]]:
        """See the protocol."""
        return self._sampler.sample(logits, rows).token_ids, [None] * len(rows)

    def rows(
        self, rows: Sequence[SamplingRow], drafts: Sequence[int], proposed: Sequence[ProposedToken | None]
    ) -> Sequence[SamplingRow]:
        """See the protocol."""
        return rows


class GreedyVerifier(CoupledVerifier):
    """For greedy requests only: a draft is accepted if it is the most likely token. Others go without drafts."""

    def accepts(self, params: SamplingParams) -> bool:
        """Greedy ones."""
        return params.is_greedy


class RejectionVerifier:
    """Speculative sampling: a draft drawn from q is accepted with probability min(1, p / q), p being the model's, and
    replaced by a draw from what p has more than q otherwise. So tokens are distributed as without drafts.

    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023; Chen et al., "Accelerating
    Large Language Model Decoding with Speculative Sampling", 2023.

    max_candidates: each draft is drawn from at most so many of the drafter's most likely tokens, which are all that
        is kept of its distribution; 0: no limit.
    """

    def __init__(self, sampler: Sampler, *, max_candidates: int = 64) -> None:
        if not isinstance(sampler, DraftingSampler):
            raise ConfigError(
                f"verifier 'rejection' needs a sampler that draws proposals, which {type(sampler).__name__} does not; "
                "use verifier 'coupled'"
            )
        self._sampler = sampler
        self._max_candidates = max_candidates

    def accepts(self, params: SamplingParams) -> bool:
        """Any."""
        return True

    def draw(
        self, logits: Tensor, rows: Sequence[SamplingRow]
    ) -> tuple[NDArray[np.int32], Sequence[ProposedToken | None]]:
        """See the protocol."""
        proposed = self._sampler.propose(logits, rows, self._max_candidates)
        return np.array([-1 if each is None else each.token for each in proposed], np.int32), proposed

    def rows(
        self, rows: Sequence[SamplingRow], drafts: Sequence[int], proposed: Sequence[ProposedToken | None]
    ) -> Sequence[SamplingRow]:
        """See the protocol. A draft that was not drawn from logits is one that was certain to be proposed."""
        verifying = [
            attrs.evolve(row, proposed=each or ProposedToken.certain(draft))
            for row, draft, each in zip(rows, drafts, proposed, strict=False)
        ]
        return [*verifying, *rows[len(verifying) :]]


def make_verifier(name: str, sampler: Sampler) -> Verifier:
    """The verifier called so, drawing with a sampler. Raises ConfigError if they do not go together."""
    kinds = {"coupled": CoupledVerifier, "greedy": GreedyVerifier, "rejection": RejectionVerifier}
    verifier: Verifier = kinds[name](sampler)
    return verifier
