"""From a step's plan to the tensors a model's forward takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deepinfer_core.interfaces.model import BatchRows, InputBatch
from deepinfer_core.worker.step_input import StepInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from deepinfer_core._C import StepPlan

#: The method ``build_metadata`` of a model or a drafter.
MetadataBuilder = Callable[[BatchRows], Mapping[str, "NDArray[np.generic]"]]


def build_input_batch(plan: StepPlan, device: torch.device, *builders: MetadataBuilder) -> InputBatch:
    """A plan's rows as tensors on ``device``, with the metadata of all ``builders``; nothing aliases the plan."""
    step = StepInput.of(plan)
    return make_input_batch(step.rows, step.token_ids, step.context_ids, device, *builders)


def make_input_batch(
    rows: BatchRows,
    token_ids: NDArray[np.integer[Any]],
    context_ids: NDArray[np.integer[Any]],
    device: torch.device,
    *builders: MetadataBuilder,
) -> InputBatch:
    """Rows, their tokens and what ``builders`` make of the rows, as tensors on ``device``."""
    columns: dict[str, NDArray[Any]] = {
        "token_ids": np.asarray(token_ids, np.int64),
        "positions": rows.positions,
        "seq_of_row": rows.seq_of_row,
        "slots": rows.slots,
        "starts": rows.starts,
        "ends": rows.ends,
        "block_tables": rows.block_tables,
        "context_ids": np.asarray(context_ids, np.int64),
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
