"""From a request's parameters to what its tokens are drawn by; the columns themselves are built natively."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import ArrayLike

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import SamplingBatch
from deepinfer_core.sampling_params import SamplingParams

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


def sampling_spec(params: SamplingParams, stop_ids: Sequence[int] = ()) -> _C.SamplingSpec:
    """The parameters as the scheduler keeps them.

    stop_ids: ids that would end the output; they are not drawn until ``min_tokens`` tokens are out.
    """
    banned = set(params.banned_token_ids)
    return _C.SamplingSpec(
        temperature=params.temperature,
        top_k=min(params.top_k, _INT32_MAX),
        top_p=params.top_p,
        min_p=params.min_p,
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
        processed_logprobs=params.logprobs_mode == "processed",
        penalties=(params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
        bias_ids=[*params.logit_bias],
        bias=[*params.logit_bias.values()],
        allowed=params.allowed_token_ids or (),
        banned=sorted(banned),
        early_banned=sorted(banned.union(stop_ids)),
        min_tokens=min(params.min_tokens, _INT64_MAX),
        forced=params.forced_token_ids,
    )


@attrs.frozen(eq=False)
class Drawn:
    """A request in the middle of its output, as :func:`batch_of` takes it.

    output_token_ids: what it has so far; the token being drawn comes next.
    stop_ids: see :func:`sampling_spec`.
    """

    params: SamplingParams = attrs.field(factory=SamplingParams)
    seed: int = 0
    prompt_token_ids: ArrayLike = ()
    output_token_ids: ArrayLike = ()
    stop_ids: Sequence[int] = ()


def batch_of(rows: Sequence[Drawn]) -> SamplingBatch:
    """The batch that an engine would make for the next token of each request. For tests, and for trying samplers."""
    columns = _C.sampling_columns(
        [sampling_spec(row.params, row.stop_ids) for row in rows],
        [row.seed for row in rows],
        [np.asarray(row.prompt_token_ids, np.int32) for row in rows],
        [np.asarray(row.output_token_ids, np.int32) for row in rows],
    )
    return SamplingBatch(**columns.columns())
