"""A draft stage: a block whose attention sees the model's recent past and the whole draft block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from deepinfer_core.interfaces.model import Tap
from deepinfer_kernels.modules import (
    Block,
    LatentAttention,
    Linear,
    MixtureOfExperts,
    Norm,
    RopeTable,
    dense_storage,
)

from .heads import ConfidenceHead, MarkovHead

if TYPE_CHECKING:
    from .config import DrafterConfig


class DraftStep:
    """One drafting pass: S blocks of B rows each, one block after the other.

    slots, starts: ``[S]`` int32, state slot and first position of each block.
    rope: at the rows' positions, ``[S*B, ·]``.
    """

    def __init__(
        self,
        kernels: Any,
        caches: Mapping[str, Tensor],
        slots: Tensor,
        starts: Tensor,
        rope: RopeTable,
        tap: Tap | None,
    ) -> None:
        self.kernels = kernels
        self.caches = caches
        self.slots, self.starts = slots, starts
        self.rope = rope
        self._tap = tap

    def observe(self, name: str, value: Tensor) -> None:
        """Show an intermediate value to the tap, if there is one."""
        if self._tap is not None:
            self._tap(name, value)


class DraftAttention(LatentAttention):
    """Within a block every row sees every other; before it, what the ring of main keys holds."""

    def __init__(self, config: DrafterConfig, ring: str) -> None:
        super().__init__(config)
        self._ring = ring

    def run(self, step: DraftStep, x: Tensor) -> Tensor:
        """``x [S*B,d]`` bf16 → bf16 ``[S*B,d]``."""
        ops, settings = step.kernels, self._settings
        _, q = self.queries(ops, x, step.rope)
        attended = ops.draft_attention(
            q,
            self.attn_sink,
            settings.softmax_scale,
            step.caches[self._ring],
            self.window_records(ops, x, step.rope),
            step.slots,
            step.starts,
            settings.window_size,
        )
        return self.output(ops, attended, step.rope)


class Stage(Block[DraftStep]):
    """``mtp.{index}`` of a checkpoint. The first one also projects the model's features, the last one has the heads."""

    attn: DraftAttention

    def __init__(self, config: DrafterConfig, index: int) -> None:
        name, hidden = f"mtp.{index}", config.hidden_size
        self.ring = f"{name}.window"
        """Name of its buffer of main keys."""
        super().__init__(name, config, DraftAttention(config, self.ring), MixtureOfExperts(config, name))
        if index == 0:
            self.main_proj = Linear(len(config.feature_layers) * hidden, hidden, dense_storage(config))
            self.main_norm = Norm(hidden)
        if index == config.num_stages - 1:
            self.norm = Norm(hidden)
            self.markov_head = MarkovHead(config.vocab_size, config.markov_rank)
            self.confidence_head = ConfidenceHead(hidden, config.markov_rank)
