"""The processor: what each row's tokens so far forbid as the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.interfaces.logits_processor import RowContext


class NoRepeatNgram:
    """Implements the ``logits_processor`` seam.

    A request's parameter is n: no n tokens in a row come twice, those of the prompt included.
    """

    def check_parameters(self, parameters: Any) -> None:
        """See the protocol."""
        if isinstance(parameters, bool) or not isinstance(parameters, int) or parameters < 1:
            raise ValueError(f"n must be an integer >= 1, got {parameters!r}")

    def process(self, logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
        """See the protocol."""
        for place, row in enumerate(rows):
            tokens = np.concatenate([row.prompt_token_ids, row.output_token_ids])
            logits[place, completions(tokens, row.parameters).tolist()] = -float("inf")
        return logits


def completions(tokens: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """Distinct tokens that would make the last ``n`` a repetition of ``n`` earlier ones."""
    if len(tokens) < n:
        return np.empty(0, np.int32)
    ngrams = np.lib.stride_tricks.sliding_window_view(tokens, n)
    begins_alike = (ngrams[:, :-1] == tokens[len(tokens) - n + 1 :]).all(axis=1)
    return np.unique(ngrams[begins_alike, -1])
