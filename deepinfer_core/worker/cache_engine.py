"""The device memory behind pages and slots, allocated once from a model's cache layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer_core.interfaces.cache import CacheLayout, StateBuffer

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer_core._C import StepPlan
    from deepinfer_core.worker.step_input import StepInput


class CacheEngine:
    """All cache tensors of a model.

    layout: what the model asked for.
    num_pages, num_slots: how many of each, the null ones (number 0) included.
    """

    def __init__(self, layout: CacheLayout, num_pages: int, num_slots: int, device: torch.device) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self.num_slots = num_slots
        self._device = device
        self.tensors: dict[str, Tensor] = {}
        """By buffer name, the number of pages or slots in front of the buffer's shape."""
        for count, buffers in ((num_pages, layout.pages), (num_slots, layout.slots)):
            for buffer in buffers:
                dtype = getattr(torch, buffer.dtype)
                self.tensors[buffer.name] = torch.zeros((count, *buffer.shape), dtype=dtype, device=device)

    def copy_slot(self, slot: int) -> dict[str, Tensor]:
        """A copy of everything one slot holds, by buffer name."""
        return {buffer.name: self.tensors[buffer.name][slot].clone() for buffer in self.layout.slots}

    def copy(self, step: StepPlan | StepInput) -> None:
        """Make the copies of a step, before anything of it is computed."""
        for buffers, copies in ((self.layout.pages, step.page_copies), (self.layout.slots, step.slot_copies)):
            if len(copies):
                self._copy(buffers, copies)

    def _copy(self, buffers: Iterable[StateBuffer], copies: NDArray[np.int32]) -> None:
        """``copies``: ``[C, 2]``, from and to; nothing is both."""
        sources, targets = torch.from_numpy(copies.T.astype(np.int64)).to(self._device)
        for buffer in buffers:
            tensor = self.tensors[buffer.name]
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.num_pages * self.layout.bytes_per_page + self.num_slots * self.layout.bytes_per_slot
