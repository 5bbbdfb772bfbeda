"""The component and its drafter, which has neither weights nor state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from deepinfer_core.interfaces.cache import CacheLayout
from deepinfer_core.interfaces.speculator import DraftBatch, Pick, Proposal
from deepinfer_prompt_lookup.lookup import lookup

if TYPE_CHECKING:
    from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, Model, ModelContext, Tap
    from deepinfer_core.interfaces.weights import WeightSpec


def _at_least_1(config: Config, field: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise ValueError(f"{field.name} must be at least 1, got {value}")


@attrs.frozen(kw_only=True)
class Config:
    """What the component can be told."""

    num_drafts: int = attrs.field(default=5, validator=_at_least_1, metadata={"help": "tokens per proposal"})
    max_ngram: int = attrs.field(default=3, validator=_at_least_1, metadata={"help": "longest n-gram looked up"})


class LookupDrafter:
    """Implements the ``speculator`` seam's Drafter: a request's tokens are all that it needs."""

    feature_layers: tuple[int, ...] = ()

    def __init__(self, config: Config) -> None:
        self._config = config
        self.num_drafts = config.num_drafts
        self.module = nn.Module()

    def weight_specs(self) -> Iterable[WeightSpec]:
        """None."""
        return ()

    def unused_tensor(self, name: str) -> str | None:
        """It has a say in none."""
        return None

    def cache_layout(self) -> CacheLayout:
        """No buffers."""
        return CacheLayout((), ())

    def build_metadata(self, rows: BatchRows) -> Mapping[str, Any]:
        """None."""
        return {}

    def new_features(self, rows: int) -> LayerFeatures:
        """Never called, as it has no feature layers."""
        raise NotImplementedError("a drafter without feature layers reads no features")

    def observe(
        self, batch: InputBatch, features: LayerFeatures | None, caches: Mapping[str, Tensor], tap: Tap | None = None
    ) -> None:
        """There is nothing to take in."""

    def propose(self, batch: DraftBatch, caches: Mapping[str, Tensor], pick: Pick, tap: Tap | None = None) -> Proposal:
        """See the protocol. The longer what was found, the likelier it goes on in the same way."""
        count = self.num_drafts if batch.num_drafts is None else min(batch.num_drafts, self.num_drafts)
        found = [lookup(tokens, self._config.max_ngram, count) for tokens in batch.tokens]
        token_ids = np.full((len(found), count), -1, np.int64)
        confidences = np.zeros((len(found), count), np.float32)
        for place, (drafts, length) in enumerate(found):
            token_ids[place, : len(drafts)], confidences[place] = drafts, length
        device = batch.token_ids.device
        return Proposal(torch.from_numpy(token_ids).to(device), None, torch.from_numpy(confidences).to(device))


class PromptLookup:
    """Implements the ``speculator`` seam, for any model."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def num_drafts(self, config: Any) -> int:
        """As configured, whatever the model."""
        return self._config.num_drafts

    def build(self, config: Any, model: Model, context: ModelContext) -> LookupDrafter:
        """The drafter."""
        return LookupDrafter(self._config)
