"""The ``model`` seam: an architecture, and a model built from it.

A component of this seam is an :class:`Architecture`; its manifest lists the ``architectures`` (the config's
names) that it serves. The core translates the config, builds the model on the meta device, checks the
checkpoint against :meth:`Model.weight_specs`, loads, then once per step calls :meth:`Model.build_metadata` on the host
and :meth:`Model.forward` on the device, which reads nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from deepinfer_core.interfaces.cache import CacheLayout
    from deepinfer_core.interfaces.weights import WeightSpec
    from deepinfer_core.tokenizer import Tokenizer

#: Called with ``(name, tensor)`` for intermediate values; for tests and debugging, never set in serving.
Tap = Callable[[str, "Tensor"], None]


class LayerTable(Protocol):
    """What can be printed of a layer plan."""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """``(headers, rows)``, a row per layer."""


class ArchitectureConfig(Protocol):
    """What the core needs to know of a model's own config."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding; token ids are below it."""

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a reply."""

    @property
    def plan(self) -> LayerTable:
        """The layer plan, for ``deepinfer inspect``."""


@attrs.frozen
class ModelContext:
    """What a model is built with.

    kernels: the backend's kernel family (a namespace of ops).
    rollback: how many already processed positions of a sequence may be processed again (rejected drafts, and the
        last token of a prompt that several samples share).
    tokenizer: of the checkpoint, or None when none is at hand (a model that needs it says so).
    device: where the forward's tensors will be; what a model makes itself, such as rotary frequencies, belongs there.
    """

    kernels: Any
    rollback: int = 0
    tokenizer: Tokenizer | None = None
    device: torch.device | str = "cpu"


@attrs.frozen(eq=False)
class BatchRows:
    """What the host knows of a step's N rows of S sequences: the columns of :class:`InputBatch`, as arrays.

    Token ids are not among them. Those of decode rows may still be on the device when a step is prepared.
    """

    positions: NDArray[np.int64]
    """``[N]``"""
    seq_of_row: NDArray[np.int32]
    """``[N]``"""
    slots: NDArray[np.int32]
    """``[N]``"""
    starts: NDArray[np.int32]
    """``[N]``"""
    ends: NDArray[np.int32]
    """``[N]``"""
    block_tables: NDArray[np.int32]
    """``[S, pages]``"""

    def ring_places(self, size: int) -> NDArray[np.int64]:
        """``[N]``: where a slot buffer ``[slots, size, ...]`` of the last ``size`` positions keeps each row, as
        ``slot * size + position % size``; -1 for rows that a later one of their chunk would overwrite."""
        places = self.slots.astype(np.int64) * size + self.positions % size
        return np.where(self.positions > self.ends - size, places, -1)

    def page_entries(
        self, entries: NDArray[np.int64], per_page: int, rows: NDArray[np.int64] | slice = slice(None)
    ) -> NDArray[np.int64]:
        """``[M]``: where a page buffer ``[pages, per_page, ...]`` keeps entry ``entries[i]`` of the sequence of row
        ``rows[i]`` (all rows), as ``page * per_page + entry % per_page``."""
        pages = self.block_tables[self.seq_of_row[rows], entries // per_page].astype(np.int64)
        return pages * per_page + entries % per_page


@attrs.frozen(eq=False)
class InputBatch:
    """One step's rows: for each of S sequences a contiguous chunk of positions, N rows in all.

    Decode rows are chunks of one token; nothing else tells them from prefill. All tensors are contiguous and
    on the model's device.
    """

    token_ids: Tensor
    """``[N]`` int64."""
    positions: Tensor
    """``[N]`` int64, absolute."""
    seq_of_row: Tensor
    """``[N]`` int32, index into the step's sequences."""
    slots: Tensor
    """``[N]`` int32, state slot of the row's sequence."""
    starts: Tensor
    """``[N]`` int32, first position of the row's chunk."""
    ends: Tensor
    """``[N]`` int32, last position of the row's chunk."""
    block_tables: Tensor
    """``[S, pages]`` int32, pages of each sequence in order; unused places are 0 (the null page)."""
    context_ids: Tensor
    """``[N, 1 + token_lookback]`` int64: column k is the token k places before the row's (0 is its own),
    -1 before the sequence's start."""
    metadata: Mapping[str, Tensor] = attrs.field(factory=dict)
    """What :meth:`Model.build_metadata` and the drafter's made of these rows, by name."""

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@attrs.frozen(eq=False)
class LayerFeatures:
    """What a speculator reads of one forward: the mean of the residual streams where chosen layers begin.

    layers: increasing; a layer's input is taken after everything that edits the streams before it.
    values: ``[N, len(layers), hidden]`` bf16, written by :meth:`Model.forward`.
    """

    layers: tuple[int, ...]
    values: Tensor

    def at(self, layer: int) -> Tensor:
        """The part of ``values`` that ``layer`` fills, ``[N, hidden]``, a view."""
        return self.values[:, self.layers.index(layer)]


@runtime_checkable
class Model(Protocol):
    """A model on a device. Rows are independent: a row's output depends on its own sequence only."""

    @property
    def module(self) -> torch.nn.Module:
        """The parameters, on the meta device until loaded."""

    @property
    def token_lookback(self) -> int:
        """How many tokens before a row its computation needs to know by id."""

    def weight_specs(self) -> Iterable[WeightSpec]:
        """Every tensor the model needs from a checkpoint."""

    def unused_tensor(self, name: str) -> str | None:
        """Why a checkpoint tensor that no spec names may be left out, or None if it may not."""

    def tied_tensors(self) -> Mapping[str, str]:
        """Checkpoint tensors that are left out because another is used in their place: ``{name: the other}``."""

    def cache_layout(self) -> CacheLayout:
        """Buffers the model needs, derived from its layer plan."""

    def build_metadata(self, rows: BatchRows) -> Mapping[str, NDArray[np.generic]]:
        """What the layers need to know of a step's rows, from the layer plan: arrays by name, computed on the host.

        The core copies them to the device together with the batch; the forward finds them in
        :attr:`InputBatch.metadata`. Counts that depend on the rows, of groups that end for instance, are the shapes.
        """

    def embed_tokens(self, token_ids: Tensor) -> Tensor:
        """``[R]`` int64 → ``[R, hidden]`` bf16, what the first layer gets of a token."""

    def forward(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        tap: Tap | None = None,
        features: LayerFeatures | None = None,
    ) -> Tensor:
        """Run all layers → final hidden states ``[N, hidden]`` bf16, after the last norm.

        ``caches`` are the tensors of :meth:`cache_layout` with the number of pages or slots in front; the
        batch's entries are written, earlier ones read. ``features``, if given, are filled.

        Nothing is read back from the device, and no shape depends on what a tensor holds.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """``[R, hidden]`` bf16 → ``[R, vocab]`` f32."""


@runtime_checkable
class Architecture(Protocol):
    """A component of the seam: makes configs and models of one family."""

    def translate_config(self, hf_config: Mapping[str, Any]) -> ArchitectureConfig:
        """Validate a published ``config.json``; raises ConfigError with the key, the value and the rule."""

    def build(self, config: Any, context: ModelContext) -> Model:
        """The model on the meta device. ``config`` is what :meth:`translate_config` returned."""
