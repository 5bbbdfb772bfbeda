"""How likely given tokens are: log-probabilities and ranks, of the raw logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer_core import _C
from deepinfer_core.interfaces.sampler import SamplerOutput

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.interfaces.prompt_rows import PromptRows

#: Logits held at once, in bytes; a whole prompt's would be gigabytes.
_SLICE_BYTES = 128 << 20


class Scorer:
    """Scores rows whose next token is known, on the engine's threads. A row's result depends on its logits alone."""

    def __init__(self) -> None:
        self._native = _C.Sampler()

    def score(
        self, hidden: Tensor, wanted: PromptRows, logits: Callable[[Tensor], Tensor], vocab_size: int
    ) -> SamplerOutput:
        """``hidden`` ``[N, hidden]``, of which ``wanted.rows`` are put through ``logits`` slice by slice.

        Returns one entry per wanted row; token id -1 marks a row with a NaN or +inf logit.
        """
        step = max(1, _SLICE_BYTES // (4 * vocab_size))
        rows = torch.from_numpy(wanted.rows).to(hidden.device)
        slices = []
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            values = logits(hidden[rows[part]]).detach().cpu().contiguous().numpy()
            scored = self._native.score(
                values, token_ids=wanted.token_ids[part], num_logprobs=wanted.num_logprobs[part]
            )
            slices.append(SamplerOutput(*scored))
        return _joined(slices)


def _joined(parts: list[SamplerOutput]) -> SamplerOutput:
    sizes = np.concatenate([np.diff(part.top_offsets) for part in parts])
    return SamplerOutput(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
        top_offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
    )
