"""What all layers of one forward share, computed once per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer_core.interfaces.cache import PAGE_TOKENS
from deepinfer_core.interfaces.model import BatchRows, InputBatch, Tap
from deepinfer_kernels.modules import RopeTable

POSITIONS = "positions"
"""``[N]`` int32."""
ENTRIES = "entries"
"""``[N*G]`` int64: where each row's G KV heads go, as entries of page buffers ``[P, G*E]``."""


def step_metadata(rows: BatchRows, kv_heads: int) -> dict[str, NDArray[Any]]:
    """What the layers need to know of a step's rows, on the host."""
    page, within = np.divmod(rows.page_entries(rows.positions, PAGE_TOKENS)[:, None], PAGE_TOKENS)
    entries = (page * kv_heads + np.arange(kv_heads)) * PAGE_TOKENS + within
    return {POSITIONS: rows.positions.astype(np.int32), ENTRIES: entries.reshape(-1)}


class Step:
    """One forward: the batch, the caches, and the rows' rotation."""

    def __init__(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        kernels: Any,
        rope: RopeTable,
        tap: Tap | None,
    ) -> None:
        self.batch = batch
        self.caches = caches
        self.kernels = kernels
        self.rope = rope
        self.positions, self._entries = batch.metadata[POSITIONS], batch.metadata[ENTRIES]
        self.tap = tap

    def store(self, name: str, rows: Tensor) -> None:
        """Write ``rows [N,G,D]`` bf16 at their positions of the buffer ``name`` ``[P,G,E,D]`` bf16."""
        as_bytes = self.caches[name].view(torch.uint8).flatten(1, 2)
        self.kernels.store_records(as_bytes, self._entries, rows.view(torch.uint8).flatten(0, 1))

    def observe(self, name: str, value: Tensor) -> None:
        """Show an intermediate value to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, value)
