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

from .layer_plan import RopeKind


class CompressedRows:
    """The rows of a step that complete a group of ``ratio`` tokens, and where their entries go."""

    def __init__(self, batch: InputBatch, ratio: int) -> None:
        entries = PAGE_TOKENS // ratio
        ends_group = (batch.positions + 1) % ratio == 0
        rows = ends_group.nonzero()[:, 0]
        entry = batch.positions[rows] // ratio
        page = batch.block_tables[batch.seq_of_row[rows].long(), entry // entries].long()
        self.rows = rows
        """``[G]`` int64, rows of the step."""
        self.positions = entry * ratio
        """``[G]`` int64, the position an entry stands at: its group's first."""
        self.slots = page * entries + entry % entries
        """``[G]`` int64, flat entries of the page buffers."""
        self.visible = ((batch.positions + 1) // ratio).to(torch.int32)
        """``[N]`` int32, entries each row may read."""


class Step:
    """One forward: the batch, the caches, and results that later layers reuse."""

    def __init__(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        kernels: Any,
        inv_freq: Mapping[RopeKind, Tensor],
        tap: Tap | None,
    ) -> None:
        self.batch = batch
        self.caches = caches
        self.kernels = kernels
        self.tap = tap
        self.topk: dict[int, Tensor] = {}
        """Chosen entries ``[N, topk]`` int32 by index source layer."""
        self.candidates: dict[int, Tensor] = {}
        """Candidate blocks ``[N, blocks]`` int32 by candidate source layer."""
        self._inv_freq = inv_freq
        self._compressed: dict[int, CompressedRows] = {}
        self._ring_slots: dict[int, Tensor] = {}
        self._ropes: dict[tuple[RopeKind, int], RopeTable] = {}

    @cached_property
    def positions(self) -> Tensor:
        """``[N]`` int32."""
        return self.batch.positions.to(torch.int32)

    def compressed(self, ratio: int) -> CompressedRows:
        """Group ends of this step for a ratio."""
        if ratio not in self._compressed:
            self._compressed[ratio] = CompressedRows(self.batch, ratio)
        return self._compressed[ratio]

    def rope(self, kind: RopeKind, ratio: int = 0) -> RopeTable:
        """Rotary table at the rows' positions, or, given a ratio, at its entries' positions."""
        if (kind, ratio) not in self._ropes:
            positions = self.compressed(ratio).positions if ratio else self.batch.positions
            self._ropes[kind, ratio] = self.kernels.rope_table(positions, self._inv_freq[kind])
        return self._ropes[kind, ratio]

    def ring_slots(self, ring: int) -> Tensor:
        """``[N]`` int64: flat ring place of each row, -1 for rows that a later one of the chunk overwrites."""
        if ring not in self._ring_slots:
            batch = self.batch
            place = batch.slots.long() * ring + batch.positions % ring
            self._ring_slots[ring] = torch.where(batch.positions > batch.ends - ring, place, -1)
        return self._ring_slots[ring]

    def observe(self, name: str, value: Tensor) -> None:
        """Show an intermediate value to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, value)
