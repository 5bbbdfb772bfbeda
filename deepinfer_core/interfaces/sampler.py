"""The ``sampler`` seam: one batch of logits in, one token per row out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from deepinfer_core.sampling_params import SamplingParams


@attrs.frozen(slots=True)
class SamplingRow:
    """What one row is sampled by.

    seed: the request's seed, in [0, 2**64); never None (``SamplingParams.resolve_seed``).
    position: absolute position of the token being drawn; the prompt's first token is at 0.
    banned: token ids that must not be drawn.
    """

    params: SamplingParams
    seed: int
    position: int
    banned: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, params: SamplingParams, seed: int, position: int, num_output_tokens: int, stop_ids: tuple[int, ...]
    ) -> SamplingRow:
        """The row of a request that has ``num_output_tokens`` so far and that ``stop_ids`` would end.

        ``stop_ids`` are banned until ``min_tokens`` tokens are out: end-of-sequence ids (unless ignored) and
        stop token ids alike.
        """
        return cls(params, seed, position, stop_ids if num_output_tokens < params.min_tokens else ())


@attrs.frozen(eq=False)
class SamplerOutput:
    """One step's tokens. Row i's most likely tokens are at ``top_offsets[i]:top_offsets[i + 1]``."""

    token_ids: NDArray[np.int32]
    """``[R]``; -1: nothing could be drawn (a NaN or +inf logit, or every token banned or at -inf)."""
    logprobs: NDArray[np.float32]
    """``[R]``, of the drawn tokens, from the logits as given; NaN for rows that asked for none or failed."""
    ranks: NDArray[np.int32]
    """``[R]``, 1 for the largest logit; 0 where ``logprobs`` is NaN."""
    top_offsets: NDArray[np.int64]
    """``[R + 1]``."""
    top_ids: NDArray[np.int32]
    """``[top_offsets[R]]``, most likely first, ties to the lowest id; -1 throughout a failed row."""
    top_logprobs: NDArray[np.float32]
    """As ``top_ids``."""


@runtime_checkable
class Sampler(Protocol):
    """Draws tokens. Called once per step, on the driver, with the rows that yield a token.

    A row's result depends on its logits, its parameters, its seed and its position only: never on its
    neighbours, on its place in the batch, or on earlier calls.
    """

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> SamplerOutput:
        """``logits``: ``[R, V]`` float32, left unchanged. One entry of ``rows`` per row."""
        ...
