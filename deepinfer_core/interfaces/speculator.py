"""The ``speculator`` seam: tokens drafted ahead of the model, for the model to verify.

A component of this seam is a :class:`Speculator`. It builds a :class:`Drafter` beside the model; the core loads its
weights, if it has any, from the same checkpoint and puts its buffers beside the model's. One step is then::

    features = drafter.new_features(len(batch)) if drafter.feature_layers else None
    hidden = model.forward(batch, caches, features=features)
    drafter.observe(batch, features, caches)    # every row, accepted later or not
    ...                                         # verify: each decoding sequence has a newest token
    proposal = drafter.propose(DraftBatch(...), caches, pick)

The core decides how many drafts of a proposal the next step verifies, and verifies them; whatever is proposed, a
request says what it would say without. A drafter that needs nothing but the tokens so far has no feature layers, no
weights and no buffers, and reads ``DraftBatch.tokens``.

An installed plugin whose component states ``capabilities.architectures`` drafts for models of these by default; any
other is named in ``plugins=[...]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from deepinfer_core.interfaces.cache import CacheLayout
    from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, Model, ModelContext, Tap
    from deepinfer_core.interfaces.weights import WeightSpec

#: Picks one draft per sequence: ``(depth, logits [S, vocab] f32) → [S] int64``, ids in 0…vocab-1. Depth 0 is the
#: token after the newest one. Called at most once per depth, from left to right; it leaves the logits as they are.
#: What it returned is what the proposal must hold.
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
    tokens: Sequence[NDArray[np.int32]] = ()
    """Per sequence, all its tokens, prompt and output; the last one is its newest. Read-only views."""
    num_drafts: int | None = None
    """No proposal needs to be longer; None: :attr:`Drafter.num_drafts`."""

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@attrs.frozen(eq=False)
class Proposal:
    """Up to B drafts for each of S sequences; draft j follows draft j-1, the first one the newest token."""

    token_ids: Tensor
    """``[S, B]`` int64; -1 where a sequence has no draft, and so no further ones."""
    logits: Tensor | None
    """``[S, B, vocab]`` f32, what each draft was picked from, given the drafts before it; may be strided. None where
    nothing was picked. The core does not read it."""
    confidences: Tensor
    """``[S, B]`` f32, log-odds that the model accepts the draft, given that it accepts those before it, and known
    before the draft itself is picked. They need not be calibrated: the core fits a scale and a bias to outcomes."""


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
        """Layers of the model whose inputs it reads; may be empty."""

    def weight_specs(self) -> Iterable[WeightSpec]:
        """Every tensor it needs from the checkpoint."""

    def unused_tensor(self, name: str) -> str | None:
        """Why a checkpoint tensor that no spec names may be left out, or None if it may not."""

    def cache_layout(self) -> CacheLayout:
        """Buffers it needs; slots only. Names differ from all of the model's."""

    def build_metadata(self, rows: BatchRows) -> Mapping[str, NDArray[np.generic]]:
        """What :meth:`observe` needs to know of a step's rows, as :meth:`Model.build_metadata` says. Names differ from
        all of the model's."""

    def new_features(self, rows: int) -> LayerFeatures:
        """Where a forward of ``rows`` rows is to leave what :meth:`observe` reads."""

    def observe(
        self, batch: InputBatch, features: LayerFeatures | None, caches: Mapping[str, Tensor], tap: Tap | None = None
    ) -> None:
        """Take in a step's rows, which the model has just run. A position may come again with another token.

        ``features`` is None for a drafter without feature layers. Nothing is read back from the device.
        """

    def propose(self, batch: DraftBatch, caches: Mapping[str, Tensor], pick: Pick, tap: Tap | None = None) -> Proposal:
        """Draft. ``caches`` are read only: a proposal that comes to nothing leaves no trace."""


@runtime_checkable
class Speculator(Protocol):
    """A component of the seam."""

    def num_drafts(self, config: Any) -> int:
        """Tokens per proposal for a model of this config (its architecture's own); 0 if none can be drafted."""
        ...

    def build(self, config: Any, model: Model, context: ModelContext) -> Drafter:
        """The drafter on the meta device, for ``model``. Raises ConfigError if the config has none.

        ``context`` is what the model was built with; its ``rollback`` is at least the number of drafts that the
        core may verify in one step.
        """
        ...
