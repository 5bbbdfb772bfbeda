"""From a step's plan to the tensors a model's forward takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deepinfer_core.interfaces.model import InputBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from deepinfer_core._C import StepPlan


def build_input_batch(plan: StepPlan, token_lookback: int, device: torch.device) -> InputBatch:
    """The plan's rows as tensors on ``device``; nothing in them aliases the plan."""
    per_sequence = plan.num_tokens
    seq_of_row = np.repeat(np.arange(plan.num_seqs, dtype=np.int32), per_sequence)
    ends = plan.starts + per_sequence - 1

    def tensor(values: NDArray[Any], dtype: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.array(values, dtype)).to(device)

    return InputBatch(
        token_ids=tensor(plan.token_ids, np.int64),
        positions=tensor(plan.positions, np.int64),
        seq_of_row=tensor(seq_of_row, np.int32),
        slots=tensor(plan.slots[seq_of_row], np.int32),
        starts=tensor(plan.starts[seq_of_row], np.int32),
        ends=tensor(ends[seq_of_row], np.int32),
        block_tables=tensor(_block_tables(plan), np.int32),
        context_ids=tensor(_context_ids(plan, seq_of_row, token_lookback), np.int64),
    )


def _block_tables(plan: StepPlan) -> NDArray[np.int32]:
    """``[S, pages]``, short tables padded with the null page."""
    lengths = np.diff(plan.block_table_offsets)
    tables = np.zeros((plan.num_seqs, int(lengths.max(initial=0))), np.int32)
    tables[np.arange(tables.shape[1])[None, :] < lengths[:, None]] = plan.block_table
    return tables


def _context_ids(plan: StepPlan, seq_of_row: NDArray[np.int32], lookback: int) -> NDArray[np.int32]:
    """``[N, 1 + lookback]``: each row's token and those before it, -1 before position 0."""
    if lookback == 0:
        return plan.token_ids[:, None]
    # Lay out every sequence's history and chunk one after another; a row's context is then a window.
    chunk_places = np.arange(len(seq_of_row)) + (seq_of_row + 1) * lookback
    line = np.empty(len(seq_of_row) + plan.num_seqs * lookback, np.int32)
    line[chunk_places] = plan.token_ids
    history_places = plan.query_offsets[:-1, None] + np.arange(plan.num_seqs)[:, None] * lookback
    line[history_places + np.arange(lookback)] = plan.history
    return np.asarray(line[chunk_places[:, None] - np.arange(1 + lookback)])
