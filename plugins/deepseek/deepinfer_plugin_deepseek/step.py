"""What all layers of one forward share, computed once per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from deepinfer_core.interfaces.model import InputBatch, Tap
from deepinfer_kernels.modules import RopeTable

from .layer_plan import RopeKind
from .metadata import POSITIONS, WINDOW_PLACES, ratio_name


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
        self.positions = batch.metadata[POSITIONS]
        self.window_places = batch.metadata[WINDOW_PLACES]
        self.topk: dict[int, Tensor] = {}
        """Chosen entries ``[N, topk]`` int32 by index source layer."""
        self.candidates: dict[int, Tensor] = {}
        """Candidate blocks ``[N, blocks]`` int32 by candidate source layer."""
        self._inv_freq = inv_freq
        self._ropes: dict[tuple[RopeKind, int], RopeTable] = {}

    def of_ratio(self, ratio: int, part: str) -> Tensor:
        """See :func:`.metadata.ratio_name`."""
        return self.batch.metadata[ratio_name(ratio, part)]

    def rope(self, kind: RopeKind, ratio: int = 0) -> RopeTable:
        """Rotary table at the rows' positions, or, given a ratio, at its entries' positions."""
        if (kind, ratio) not in self._ropes:
            positions = self.of_ratio(ratio, "positions") if ratio else self.batch.positions
            self._ropes[kind, ratio] = self.kernels.rope_table(positions, self._inv_freq[kind])
        return self._ropes[kind, ratio]

    def observe(self, name: str, value: Tensor) -> None:
        """Show an intermediate value to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, value)
