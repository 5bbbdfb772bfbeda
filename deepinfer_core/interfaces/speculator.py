"""The ``speculator`` seam: tokens drafted ahead of the model, for the model to verify.

A component of this seam is a :class:`Speculator`. It builds a :class:`Drafter` beside the model; the core loads its
weights from the same checkpoint and puts its buffers beside the model's. One step is then::

    features = drafter.new_features(len(batch))
    hidden = model.forward(batch, caches, features=features)
    drafter.observe(batch, features, caches)    # every row, accepted later or not
    ...                                         # sample or verify: each decoding sequence has a newest token
    proposal = drafter.propose(DraftBatch(...), caches, pick)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from deepinfer_core.interfaces.cache import CacheLayout
    from deepinfer_core.interfaces.model import InputBatch, LayerFeatures, Model, ModelContext, Tap
    from deepinfer_core.model_loader.weights import WeightSpec

#: Picks one draft per sequence: ``(depth, logits [S, vocab] f32) → [S] int64``, ids in 0…vocab-1. Depth 0 is the
#: token after the newest one. Called once per depth, from left to right; it must leave the logits as they are.
Pick = Callable[[int, "Tensor"], "Tensor"]


@attrs.frozen(eq=False)
class DraftBatch:
    """The S sequences to draft for. All tensors are contiguous and on the model's device."""

    token_ids: Tensor
    """``[S]`` int64, each sequence's newest token, which no forward has seen."""
    positions: Tensor
    """``[S]`` int64, its absolute position. The drafter has observed what stands before it."""
    slots: Tensor
    """``[S]`` int32, the sequence's state slot."""

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@attrs.frozen(eq=False)
class Proposal:
    """B drafts for each of S sequences; draft j follows draft j-1, the first one the newest token."""

    token_ids: Tensor
    """``[S, B]`` int64."""
    logits: Tensor
    """``[S, B, vocab]`` f32, what each draft was picked from, given the drafts before it; may be strided."""
    confidences: Tensor
    """``[S, B]`` f32, log-odds that the model accepts the draft, given that it accepts those before it."""


@runtime_checkable
class Drafter(Protocol):
    """A drafter on a device. Sequences are independent: what is proposed for one depends on it alone, bit for bit.

    All it keeps between steps is in slots, so whoever copies or clears a slot takes care of the drafter too.
    """

    @property
    def module(self) -> torch.nn.Module:
        """The parameters, on the meta device until loaded."""

    @property
    def num_drafts(self) -> int:
        """B, tokens per proposal."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the model whose inputs it reads."""

    def weight_specs(self) -> Iterable[WeightSpec]:
        """Every tensor it needs from the checkpoint."""

    def unused_tensor(self, name: str) -> str | None:
        """Why a checkpoint tensor that no spec names may be left out, or None if it may not."""

    def cache_layout(self) -> CacheLayout:
        """Buffers it needs; slots only. Names differ from all of the model's."""

    def new_features(self, rows: int) -> LayerFeatures:
        """Where a forward of ``rows`` rows is to leave what :meth:`observe` reads."""

    def observe(
        self, batch: InputBatch, features: LayerFeatures, caches: Mapping[str, Tensor], tap: Tap | None = None
    ) -> None:
        """Take in a step's rows, which the model has just run. A position may come again with another token."""

    def propose(self, batch: DraftBatch, caches: Mapping[str, Tensor], pick: Pick, tap: Tap | None = None) -> Proposal:
        """Draft. ``caches`` are read only: a proposal that comes to nothing leaves no trace."""


@runtime_checkable
class Speculator(Protocol):
    """A component of the seam."""

    def num_drafts(self, config: Any) -> int:
        """Tokens per proposal for a model of this config (its architecture's own); 0 if it has no drafter."""
        ...

    def build(self, config: Any, model: Model, context: ModelContext) -> Drafter:
        """The drafter on the meta device, for ``model``. Raises ConfigError if the config has none.

        ``context`` is what the model was built with; its ``rollback`` is at least the number of drafts that the
        core may verify in one step.
        """
        ...
