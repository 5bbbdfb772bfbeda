"""Rows of a step that are scored rather than sampled."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray


@attrs.frozen(eq=False)
class PromptRows:
    """P rows of a step whose next token is known, a prompt's, and to be scored."""

    rows: NDArray[np.int64]
    """``[P]``, places among the step's rows."""
    token_ids: NDArray[np.int32]
    """``[P]``, the token that comes after each."""
    num_logprobs: NDArray[np.int32]
    """``[P]``, how many of the most likely tokens to name beside it."""
