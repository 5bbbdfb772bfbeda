"""The ``sampler`` seam: one batch of logits in, one token per row out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from deepinfer_core.interfaces.logits_processor import RowContext
    from deepinfer_core.interfaces.sampling_params import SamplingParams


_NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
_NO_VALUES: NDArray[np.float32] = np.empty(0, np.float32)


@attrs.frozen(slots=True, eq=False)
class LogitEdits:
    """What is done to a row's logits before anything is drawn, in the order of the fields; greedy or not.

    The ids of each array, int32, are distinct.

    bias_ids, bias: float32 that is added to the logits of these ids.
    repetition_penalty: positive logits of ``seen_ids`` are divided by it, others multiplied.
    frequency_penalty, presence_penalty: the first times the count, and the second where the count is not 0, are
        taken from the logits of ``seen_ids``.
    seen_ids, seen_counts: tokens of the prompt or the output, and how often the output has each, int32.
    allowed: unless empty, the only ids that may be drawn.
    banned: ids that must not be drawn.
    """

    bias_ids: NDArray[np.int32] = _NO_IDS
    bias: NDArray[np.float32] = _NO_VALUES
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seen_ids: NDArray[np.int32] = _NO_IDS
    seen_counts: NDArray[np.int32] = _NO_IDS
    allowed: NDArray[np.int32] = _NO_IDS
    banned: NDArray[np.int32] = _NO_IDS


@attrs.frozen(slots=True, eq=False)
class ProposedToken:
    """A token drawn from another distribution than the row's.

    token_ids, probabilities: the tokens that could have been drawn, ``[K]`` int32 rising, and with what probability,
        ``[K]`` float64, above 0 and 1 in sum.
    """

    token: int
    token_ids: NDArray[np.int32]
    probabilities: NDArray[np.float64]

    @classmethod
    def certain(cls, token: int) -> Self:
        """One that nothing else could have been drawn for."""
        return cls(token, np.array([token], np.int32), np.ones(1))


@attrs.frozen(slots=True, eq=False)
class SamplingRow:
    """What one row is sampled by; :class:`deepinfer_core.sampling.SamplingState` makes it from a request.

    params: temperature, filters and logprobs. All that edits logits is in ``edits`` already.
    seed: the request's seed, in [0, 2**64); never None (``SamplingParams.resolve_seed``).
    position: absolute position of the token being drawn; the prompt's first token is at 0.
    edits: None for none.
    forced: the token to report as drawn, with its logprobs; None: draw.
    proposed: unless None, the token is its token with probability min(1, p / q), p and q being the probabilities
        that the row's and its own distribution give it, and otherwise drawn with probabilities in proportion to
        what p exceeds q by; so it is distributed as the row's. Only for a :class:`DraftingSampler`.
    context: what logits_processor components see of the request; None where none acts on it.
    mask: ``[ceil(V / 32)]`` int32: only tokens t with bit ``t % 32`` of word ``t // 32`` set may be drawn, beside what
        ``edits`` excludes; bits beyond V mean nothing. None: no mask.
    """

    params: SamplingParams
    seed: int
    position: int
    edits: LogitEdits | None = None
    forced: int | None = None
    context: RowContext | None = None
    mask: NDArray[np.int32] | None = None
    proposed: ProposedToken | None = None


@attrs.frozen(eq=False)
class SamplerOutput:
    """One step's tokens. Row i's most likely tokens are at ``top_offsets[i]:top_offsets[i + 1]``."""

    token_ids: NDArray[np.int32]
    """``[R]``; -1: nothing could be drawn (a NaN or +inf logit, or every token masked or at -inf)."""
    logprobs: NDArray[np.float32]
    """``[R]``, of the drawn tokens, raw or processed; NaN for rows that asked for none or failed."""
    ranks: NDArray[np.int32]
    """``[R]``, 1 for the largest logit; 0 where ``logprobs`` is NaN."""
    top_offsets: NDArray[np.int64]
    """``[R + 1]``."""
    top_ids: NDArray[np.int32]
    """``[top_offsets[R]]``, most likely first, ties to the lowest id; -1 throughout a failed row."""
    top_logprobs: NDArray[np.float32]
    """As ``top_ids``; -inf for what a mask or filter leaves out."""
    errors: Mapping[int, str] = attrs.field(factory=dict)
    """By row, why nothing could be drawn, where more is known than that."""


@runtime_checkable
class Sampler(Protocol):
    """Draws tokens. Called once per step, on the driver, with the rows that yield a token; and with those of drafts.

    A row's result depends on its logits, its parameters, its seed and its position only: never on its
    neighbours, on its place in the batch, or on earlier calls.

    A sampler that changes one thing can leave the others to :class:`deepinfer_core.sampling.DefaultSampler`: with
    ``attrs.evolve`` it gives rows other ``edits``, such as what it keeps as ``allowed``, and passes them on. What a
    row's edits make of its logits is :func:`deepinfer_core.sampling.edited_logits`.
    """

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SamplerOutput:
        """``logits``: ``[R, V]`` float32, left unchanged. One entry of ``rows`` per row."""
        ...


@runtime_checkable
class DraftingSampler(Sampler, Protocol):
    """A sampler that can also draw drafts by rejection's rules; the others verify drafts by comparison only."""

    def propose(
        self, logits: torch.Tensor, rows: Sequence[SamplingRow], max_candidates: int
    ) -> Sequence[ProposedToken | None]:
        """Draw from a drafter's logits, ``[R, V]`` float32, left unchanged; None where nothing can be drawn.

        Each token is drawn by its row, with randomness that :meth:`sample` does not use, of at most
        ``max_candidates`` tokens, the most likely ones; 0: no limit.
        """
        ...
