"""One step as columns: all that a device needs to know of a plan. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.model import BatchRows

if TYPE_CHECKING:
    from deepinfer_core._C import StepPlan


@attrs.frozen(eq=False)
class StepInput:
    """N rows of S sequences, of which R yield a token."""

    rows: BatchRows
    token_ids: NDArray[np.int32]
    """``[N]``; -1 where the token is still to be drawn."""
    context_ids: NDArray[np.int32]
    """``[N, 1 + lookback]``: each row's token and those before it, -1 before position 0."""
    sampled_rows: NDArray[np.int64]
    """``[R]``, the rows that yield a token."""
    pending_rows: NDArray[np.int64]
    """``[P]``, the rows whose own token is still to be drawn."""
    pending_sources: NDArray[np.int64]
    """``[P]``, which of the step before's R tokens each is."""
    page_copies: NDArray[np.int32]
    """``[C, 2]`` from, to: made before any row is computed."""
    slot_copies: NDArray[np.int32]
    """``[C, 2]``, likewise."""

    @classmethod
    def of(cls, plan: StepPlan, token_lookback: int) -> StepInput:
        """A plan's columns; nothing in them changes when the plan is gone."""
        starts, num_tokens = plan.starts, plan.num_tokens
        seq_of_row = np.repeat(np.arange(plan.num_seqs, dtype=np.int32), num_tokens)
        sources = plan.token_sources
        pending = np.flatnonzero(sources >= 0) if plan.num_pending else _NONE
        return cls(
            rows=BatchRows(
                positions=plan.positions.astype(np.int64),
                seq_of_row=seq_of_row,
                slots=plan.slots[seq_of_row],
                starts=starts[seq_of_row],
                ends=(starts + num_tokens - 1)[seq_of_row],
                block_tables=_block_tables(plan),
            ),
            token_ids=plan.token_ids,
            context_ids=_context_ids(plan, seq_of_row, token_lookback),
            sampled_rows=sampled_rows(plan),
            pending_rows=pending,
            pending_sources=sources[pending].astype(np.int64),
            page_copies=plan.page_copies,
            slot_copies=plan.slot_copies,
        )


_NONE: NDArray[np.int64] = np.empty(0, np.int64)


def sampled_rows(plan: StepPlan) -> NDArray[np.int64]:
    """``[R]``, rows of the step that yield a token: of each sampling sequence the last known one and its drafts."""
    ends = plan.query_offsets[1:][plan.samples].astype(np.int64)
    if plan.num_sampled_rows == len(ends):
        return ends - 1
    counts = 1 + plan.num_drafts[plan.samples]
    starts = np.cumsum(counts) - counts
    return np.repeat(ends - counts - starts, counts) + np.arange(counts.sum())


def _block_tables(plan: StepPlan) -> NDArray[np.int32]:
    """``[S, pages]``, short tables padded with the null page."""
    lengths = np.diff(plan.block_table_offsets)
    tables = np.zeros((plan.num_seqs, int(lengths.max(initial=0))), np.int32)
    tables[np.arange(tables.shape[1])[None, :] < lengths[:, None]] = plan.block_table
    return tables


def _context_ids(plan: StepPlan, seq_of_row: NDArray[np.int32], lookback: int) -> NDArray[np.int32]:
    if lookback == 0:
        return plan.token_ids[:, None]
    # Lay out every sequence's history and chunk one after another; a row's context is then a window.
    chunk_places = np.arange(len(seq_of_row)) + (seq_of_row + 1) * lookback
    line = np.empty(len(seq_of_row) + plan.num_seqs * lookback, np.int32)
    line[chunk_places] = plan.token_ids
    history_places = plan.query_offsets[:-1, None] + np.arange(plan.num_seqs)[:, None] * lookback
    line[history_places + np.arange(lookback)] = plan.history
    return np.asarray(line[chunk_places[:, None] - np.arange(1 + lookback)])
