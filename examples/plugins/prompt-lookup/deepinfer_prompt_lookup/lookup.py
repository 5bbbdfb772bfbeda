"""The lookup itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lookup(tokens: NDArray[np.int32], longest: int, count: int) -> tuple[NDArray[np.int32], int]:
    """``(drafts, length)``: what followed the last earlier occurrence of the longest n-gram that ``tokens`` end with.

    ``length``: of that n-gram, at most ``longest``; 0 and no drafts if even the last token is new. What runs up to the
    end goes round, so there are ``count`` drafts otherwise: a text that repeats itself goes on repeating.
    """
    for length in range(min(longest, len(tokens) - 1), 0, -1):
        # Of n-grams that something follows.
        ngrams = np.lib.stride_tricks.sliding_window_view(tokens[:-1], length)
        matches = (ngrams == tokens[-length:]).all(axis=1).nonzero()[0]
        if len(matches):
            return np.resize(tokens[matches[-1] + length :], count), length
    return tokens[:0], 0
