"""How drafts are drawn and verified. Whichever verifier it is: a draft is accepted if the row before it draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.sampler import DraftingSampler, Proposals

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.interfaces.sampler import Sampler, SamplingBatch


class Verifier(Protocol):
    """Draws drafts from a drafter's logits, and prepares the rows that decide about them."""

    def accepts(self, temperature: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of S sequences, by their temperatures, drafts can be verified for; the others get none."""
        ...

    def draw(self, logits: Tensor, batch: SamplingBatch) -> tuple[NDArray[np.int32], Proposals | None]:
        """One draft per row ``[S]``, -1 where none could be drawn, and what :meth:`verifying` needs to know of them.

        logits: ``[S, V]`` float32, left unchanged. batch: what the model's own tokens will be drawn by, if the drafts
        before them are accepted.
        """
        ...

    def verifying(
        self,
        batch: SamplingBatch,
        plan: StepPlan,
        places: NDArray[np.int64],
        picked: Sequence[Proposals | None],
    ) -> SamplingBatch:
        """The rows that verify a plan's drafts, made of those by which its sequences draw their tokens.

        places: per sampling sequence its row among those that were drafted for; meaningless for one without drafts.
        picked: by depth, what :meth:`draw` returned.
        """
        ...


class CoupledVerifier:
    """Drafts and tokens are drawn with the same noise: of the request's seed, the position and the token.

    The model's rows are sampled as if nothing had been drafted, so the tokens are those without drafts. They agree
    often because the noise is shared. At temperature 0 this is the comparison with the most likely token.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def accepts(self, temperature: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Any."""
        return np.ones(len(temperature), bool)

    def draw(self, logits: Tensor, batch: SamplingBatch) -> tuple[NDArray[np.int32], Proposals | None]:
        """See the protocol."""
        return self._sampler.sample(logits, batch).token_ids, None

    def verifying(
        self,
        batch: SamplingBatch,
        plan: StepPlan,
        places: NDArray[np.int64],
        picked: Sequence[Proposals | None],
    ) -> SamplingBatch:
        """See the protocol."""
        return batch


class GreedyVerifier(CoupledVerifier):
    """For greedy requests only: a draft is accepted if it is the most likely token. Others go without drafts."""

    def accepts(self, temperature: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Greedy ones."""
        return np.equal(temperature, 0.0)


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

    def accepts(self, temperature: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Any."""
        return np.ones(len(temperature), bool)

    def draw(self, logits: Tensor, batch: SamplingBatch) -> tuple[NDArray[np.int32], Proposals | None]:
        """See the protocol."""
        proposals = self._sampler.propose(logits, batch, self._max_candidates)
        return proposals.tokens, proposals

    def verifying(
        self,
        batch: SamplingBatch,
        plan: StepPlan,
        places: NDArray[np.int64],
        picked: Sequence[Proposals | None],
    ) -> SamplingBatch:
        """See the protocol. A draft that was not drawn from logits is one that was certain to be proposed."""
        num_drafts = plan.num_drafts[plan.samples]
        ends = plan.query_offsets[1:][plan.samples]
        firsts = np.cumsum(1 + num_drafts) - (1 + num_drafts)
        tokens = np.full(len(batch), -1, np.int32)
        ids: list[NDArray[np.int32]] = [_NO_IDS] * len(batch)
        probabilities: list[NDArray[np.float64]] = [_NO_VALUES] * len(batch)
        for index in np.flatnonzero(num_drafts).tolist():
            for depth in range(int(num_drafts[index])):
                row = int(firsts[index]) + depth
                tokens[row] = plan.token_ids[ends[index] - num_drafts[index] + depth]
                ids[row], probabilities[row] = tokens[row : row + 1], _CERTAIN
                proposals = picked[depth] if depth < len(picked) else None
                if proposals is not None and proposals.tokens[places[index]] >= 0:
                    part = slice(*proposals.offsets[places[index] : places[index] + 2].tolist())
                    ids[row], probabilities[row] = proposals.ids[part], proposals.probabilities[part]
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in ids])]).astype(np.int64)
        proposed = Proposals(tokens, offsets, np.concatenate(ids), np.concatenate(probabilities))
        return attrs.evolve(batch, proposed=proposed)


_NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
_NO_VALUES: NDArray[np.float64] = np.empty(0)
_CERTAIN: NDArray[np.float64] = np.ones(1)


def make_verifier(name: str, sampler: Sampler) -> Verifier:
    """The verifier called so, drawing with a sampler. Raises ConfigError if they do not go together."""
    kinds = {"coupled": CoupledVerifier, "greedy": GreedyVerifier, "rejection": RejectionVerifier}
    verifier: Verifier = kinds[name](sampler)
    return verifier
