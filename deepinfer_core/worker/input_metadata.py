"""From a step's plan to the tensors a model's forward takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deepinfer_core.interfaces.model import BatchRows, InputBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from deepinfer_core._C import StepPlan

#: The method ``build_metadata`` of a model or a drafter.
MetadataBuilder = Callable[[BatchRows], Mapping[str, "NDArray[np.generic]"]]


def build_input_batch(
    plan: StepPlan, token_lookback: int, device: torch.device, *builders: MetadataBuilder
) -> InputBatch:
    """The plan's rows as tensors on ``device``, with the metadata of all ``builders``; nothing aliases the plan."""
    rows = _rows(plan)
    return make_input_batch(
        rows, plan.token_ids, _context_ids(plan, rows.seq_of_row, token_lookback), device, *builders
    )


def make_input_batch(
    rows: BatchRows,
    token_ids: NDArray[np.integer[Any]],
    context_ids: NDArray[np.integer[Any]],
    device: torch.device,
    *builders: MetadataBuilder,
) -> InputBatch:
    """Rows, their tokens and what ``builders`` make of the rows, as tensors on ``device``."""
    columns: dict[str, NDArray[Any]] = {
        "token_ids": token_ids.astype(np.int64),
        "positions": rows.positions,
        "seq_of_row": rows.seq_of_row,
        "slots": rows.slots,
        "starts": rows.starts,
        "ends": rows.ends,
        "block_tables": rows.block_tables,
        "context_ids": context_ids.astype(np.int64),
    }
    parts = [build(rows) for build in builders]
    metadata = {name: values for part in parts for name, values in part.items()}
    assert len(metadata) == sum(map(len, parts)), "a drafter's metadata has names of its own"
    tensors = _copied([*columns.values(), *metadata.values()], device)
    there = dict(zip(columns, tensors, strict=False))
    return InputBatch(**there, metadata=dict(zip(metadata, tensors[len(columns) :], strict=True)))


def _copied(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays as contiguous tensors on ``device``, in one copy per dtype."""
    places: dict[np.dtype[Any], list[int]] = {}
    for place, values in enumerate(arrays):
        places.setdefault(values.dtype, []).append(place)
    found: dict[int, Tensor] = {}
    for those in places.values():
        joined = torch.from_numpy(np.concatenate([arrays[place].reshape(-1) for place in those])).to(device)
        for place, tensor in zip(those, joined.split([arrays[place].size for place in those]), strict=True):
            found[place] = tensor if arrays[place].ndim == 1 else tensor.view(arrays[place].shape)
    return [found[place] for place in range(len(arrays))]


def _rows(plan: StepPlan) -> BatchRows:
    per_sequence, starts = plan.num_tokens, plan.starts
    seq_of_row = np.repeat(np.arange(plan.num_seqs, dtype=np.int32), per_sequence)
    return BatchRows(
        positions=plan.positions.astype(np.int64),
        seq_of_row=seq_of_row,
        slots=plan.slots[seq_of_row],
        starts=starts[seq_of_row],
        ends=(starts + per_sequence - 1)[seq_of_row],
        block_tables=_block_tables(plan),
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
