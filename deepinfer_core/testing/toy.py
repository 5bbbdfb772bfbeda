"""A model of a few kilobytes that uses all a model can use: pages, slots, token lookback, features.

It needs no kernels, and a row's result is the same bits wherever the row is computed, so a wrong page, slot, position
or order anywhere in the engine changes its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.cache import PAGE_TOKENS, CacheLayout, StateBuffer
from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, ModelContext, Tap
from deepinfer_core.interfaces.weights import WeightSpec

ARCHITECTURE = "ToyForCausalLM"
#: ``config.json`` of a checkpoint.
TOY_CONFIG: Mapping[str, Any] = {
    "architectures": [ARCHITECTURE], "vocab_size": 61, "hidden_size": 16, "max_position_embeddings": 640,
    "eos_token_id": 2,
}  # fmt: skip

_PLACES = ("entries", "halves", "places", "before")


@attrs.frozen
class ToyConfig:
    """What :data:`TOY_CONFIG` says; its own layer plan."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]

    @property
    def plan(self) -> ToyConfig:
        """It prints itself."""
        return self

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """One layer."""
        return ("layer", "kind"), [("0", "recurrent")]


class ToyModel(nn.Module):
    """``state[p] = state[p-1] / 2 + E[token[p]]`` in a slot; logits of it plus ``E[token[p // 2]]``, from a page."""

    token_lookback = 1

    def __init__(self, config: ToyConfig, rollback: int) -> None:
        super().__init__()
        self.config = config
        self.ring = rollback + 2
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, dtype=torch.bfloat16)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=torch.bfloat16)

    @property
    def module(self) -> nn.Module:
        """The parameters."""
        return self

    def weight_specs(self) -> Iterable[WeightSpec]:
        """Two tensors."""
        return [WeightSpec("embedding.weight", "embedding.weight"), WeightSpec("head.weight", "head.weight")]

    def unused_tensor(self, name: str) -> str | None:
        """A checkpoint's drafter is somebody else's."""
        return "of a drafter" if name.startswith("drafter.") else None

    def tied_tensors(self) -> Mapping[str, str]:
        """None."""
        return {}

    def cache_layout(self) -> CacheLayout:
        """Embeddings by position, and the last states."""
        size = self.config.hidden_size
        pages = StateBuffer("toy.values", (PAGE_TOKENS, size), "bfloat16")
        return CacheLayout((pages,), (StateBuffer("toy.states", (self.ring, size), "float32"),))

    def build_metadata(self, rows: BatchRows) -> Mapping[str, NDArray[np.int64]]:
        """Flat places of every row, and of what it reads, in the buffers."""
        at, slots = rows.positions, rows.slots.astype(np.int64) * self.ring
        entries, halves = rows.page_entries(at, PAGE_TOKENS), rows.page_entries(at // 2, PAGE_TOKENS)
        found = entries, halves, slots + at % self.ring, slots + (at - 1) % self.ring
        return {f"toy.{name}": places for name, places in zip(_PLACES, found, strict=True)}

    def embed_tokens(self, token_ids: Tensor) -> Tensor:
        """See :class:`deepinfer_core.interfaces.model.Model`."""
        embedded: Tensor = self.embedding(token_ids)
        return embedded

    @torch.inference_mode()
    def forward(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        tap: Tap | None = None,
        features: LayerFeatures | None = None,
    ) -> Tensor:
        """See :class:`deepinfer_core.interfaces.model.Model`."""
        values, states = (caches[f"toy.{name}"].flatten(0, 1) for name in ("values", "states"))
        entries, halves, places, before = (batch.metadata[f"toy.{name}"] for name in _PLACES)
        embedded = self.embedding(batch.token_ids)
        hidden = torch.empty_like(embedded)
        if features is not None:
            features.values[:] = embedded[:, None]
        # Each row goes on from the one before it. Slices, for a row's number alone would be read back.
        for row in (slice(place, place + 1) for place in range(len(batch))):
            values[entries[row]] = embedded[row]
            state = embedded[row].float()
            going_on = state + states[before[row]] / 2 + batch.context_ids[row, 1:] / 64
            state = torch.where(batch.positions[row, None] > 0, going_on, state)
            states[places[row]] = state
            hidden[row] = (state + values[halves[row]]).to(torch.bfloat16)
        if tap is not None:
            tap("hidden", hidden)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Products of two bf16 numbers and short sums of them are exact in f64: the order does not matter."""
        return (hidden.double() @ self.head.weight.double().T).float()


class ToyArchitecture:
    """The component of the ``model`` seam; give it to an engine as an object."""

    seam = "model"
    name = "toy"
    architectures = (ARCHITECTURE,)

    def translate_config(self, hf_config: Mapping[str, Any]) -> ToyConfig:
        """See :class:`deepinfer_core.interfaces.model.Architecture`."""
        values = {}
        for key in ("vocab_size", "hidden_size", "max_position_embeddings"):
            value = hf_config.get(key)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{key} must be an integer of at least 1, got {value!r}")
            values[key] = value
        end = hf_config.get("eos_token_id")
        return ToyConfig(**values, eos_token_ids=(end,) if isinstance(end, int) else ())

    def build(self, config: ToyConfig, context: ModelContext) -> ToyModel:
        """See :class:`deepinfer_core.interfaces.model.Architecture`."""
        with torch.device("meta"):
            return ToyModel(config, context.rollback)
