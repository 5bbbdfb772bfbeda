"""What all layers of one forward share, computed once per step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces.cache import PAGE_TOKENS
from deepinfer_core.interfaces.model import InputBatch, Tap
from deepinfer_kernels.modules import RopeTable


class Step:
    """One forward: the batch, the caches with ``kv_heads`` heads, and the rows' rotation."""

    def __init__(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        kernels: Any,
        kv_heads: int,
        rope: RopeTable,
        tap: Tap | None,
    ) -> None:
        self.batch = batch
        self.caches = caches
        self.kernels = kernels
        self.rope = rope
        self._kv_heads = kv_heads
        self.tap = tap

    @cached_property
    def positions(self) -> Tensor:
        """``[N]`` int32."""
        return self.batch.positions.to(torch.int32)

    @cached_property
    def entries(self) -> Tensor:
        """``[N*G]`` int64: where each row's KV heads go, as entries of page buffers ``[P, G*E]``."""
        batch, heads = self.batch, torch.arange(self._kv_heads, device=self.batch.positions.device)
        pages = batch.block_tables[batch.seq_of_row.long(), batch.positions // PAGE_TOKENS].long()
        within = batch.positions % PAGE_TOKENS
        return ((pages[:, None] * self._kv_heads + heads) * PAGE_TOKENS + within[:, None]).flatten()

    def store(self, name: str, rows: Tensor) -> None:
        """Write ``rows [N,G,D]`` bf16 at their positions of the buffer ``name`` ``[P,G,E,D]`` bf16."""
        as_bytes = self.caches[name].view(torch.uint8).flatten(1, 2)
        self.kernels.store_records(as_bytes, self.entries, rows.view(torch.uint8).flatten(0, 1))

    def observe(self, name: str, value: Tensor) -> None:
        """Show an intermediate value to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, value)
