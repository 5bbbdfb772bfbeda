"""The ``logits_processor`` seam: edits of logits that depend on what a request has so far.

A component acts on the requests that name it: ``SamplingParams(extra={"name": parameters})``. Components are chained
in the order that the plugins declare (``before``, ``after``), and come before everything else that turns logits into
a token, so a token that a request's own parameters exclude stays excluded. A step in which no request names a
component calls nothing and copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core.interfaces.sampling_params import SamplingParams


@attrs.frozen(slots=True, eq=False)
class RowContext:
    """What a component sees of one row's request. Nothing in it ever changes, so it may be kept.

    parameters: ``params.extra`` of this component, frozen plain data.
    prompt_token_ids, output_token_ids: ``[P]`` and ``[T]`` int32, read-only; the token being drawn comes next.
        Also after a preemption they hold committed tokens, and where tokens are drafted ahead the drafts before
        this one: what the row yields counts only if these are accepted.
    """

    request_id: str
    params: SamplingParams
    prompt_token_ids: NDArray[np.int32]
    output_token_ids: NDArray[np.int32]
    parameters: Any = None


@runtime_checkable
class LogitsProcessor(Protocol):
    """A component of the seam. Called on the driver, from one thread at a time.

    What it makes of a row must depend on that row and its context only: never on neighbours, on the place in the
    batch, or on earlier calls, or else a request's tokens would change with what runs beside it.
    """

    def check_parameters(self, parameters: Any) -> None:
        """Called for each request that names the component, before the request is accepted.

        Raises ValueError, with the value, what was expected and the remedy, to refuse it.
        """
        ...

    def process(self, logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
        """Called once per step with the rows of the requests that name the component, if there are any; and once for
        each depth at which drafts for such requests are drawn.

        logits: ``[len(rows), V]`` float32, the component's own copy: it may be changed in place.

        Returns logits of the same shape and dtype, on the same device. -inf excludes a token; NaN and +inf end the
        row's request with an error that names the component, and so does an exception for every row of the call.
        """
        ...
