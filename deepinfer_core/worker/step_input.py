"""One step as columns: all that a device needs to know of a plan. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.columns import pack, unpack
from deepinfer_core.interfaces.model import BatchRows

if TYPE_CHECKING:
    from deepinfer_core._C import StepPlan


@attrs.frozen(eq=False)
class StepInput:
    """N rows of S sequences, of which R yield a token."""

    rows: BatchRows
    token_ids: NDArray[np.int64]
    """``[N]``; -1 where the token is still to be drawn."""
    context_ids: NDArray[np.int64]
    """``[N, 1 + lookback]``: each row's token and those before it, -1 before position 0."""
    sampled_rows: NDArray[np.int64]
    """``[R]``, the rows that yield a token: of each sampling sequence the last known one and its drafts."""
    pending_rows: NDArray[np.int64]
    """``[P]``, the rows whose own token is still to be drawn."""
    pending_sources: NDArray[np.int64]
    """``[P]``, which of the step before's R tokens each is."""
    page_copies: NDArray[np.int32]
    """``[C, 2]`` from, to: made before any row is computed."""
    slot_copies: NDArray[np.int32]
    """``[C, 2]``, likewise."""

    @classmethod
    def of(cls, plan: StepPlan) -> StepInput:
        """A plan's columns, which own what they hold. The lookback is the scheduler's ``token_history``."""
        columns = plan.columns()
        rows = BatchRows(**{name: columns.pop(name) for name in _ROW_COLUMNS})
        return cls(rows=rows, **columns, page_copies=plan.page_copies, slot_copies=plan.slot_copies)

    def to_bytes(self) -> bytes:
        """The columns as a message for another process; see :mod:`deepinfer_core.columns`."""
        own = {name: getattr(self, name) for name in _COLUMNS}
        return pack({**own, **{name: getattr(self.rows, name) for name in _ROW_COLUMNS}})

    @classmethod
    def from_bytes(cls, data: bytes) -> StepInput:
        """What :meth:`to_bytes` wrote; the arrays are views of ``data``. Raises ValueError for anything else."""
        columns: dict[str, Any] = unpack(data)
        if set(columns) != {*_COLUMNS, *_ROW_COLUMNS}:
            raise ValueError(f"a step's columns must be {', '.join([*_ROW_COLUMNS, *_COLUMNS])}, got {sorted(columns)}")
        rows = BatchRows(**{name: columns.pop(name) for name in _ROW_COLUMNS})
        return cls(rows=rows, **columns)


_ROW_COLUMNS = tuple(field.name for field in attrs.fields(BatchRows))
_COLUMNS = tuple(field.name for field in attrs.fields(StepInput) if field.name != "rows")
