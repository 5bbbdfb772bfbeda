"""The drafter: DSpark's stages and heads on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepinfer_core.interfaces.cache import CacheLayout, StateBuffer
from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, Model, ModelContext, Tap
from deepinfer_core.interfaces.speculator import DraftBatch, Pick, Proposal
from deepinfer_core.interfaces.weights import WeightSpec
from deepinfer_kernels.codecs import CODECS, WINDOW_CODEC
from deepinfer_kernels.modules import checkpoint_tensors, first_mix, inverse_frequencies

from .stage import DraftStep, Stage

if TYPE_CHECKING:
    from .config import DrafterConfig

#: Parts of a checkpoint that the drafter does not load, and why.
OTHER_PARTS = {
    r"(?!mtp\.)": "belongs to the model",
    r"mtp\.\d+\.(embed|head)\.weight$": "shared with the model",
    r"mtp\.\d+\.ffn\.gate\.bias_vl$": "routes image rows only",
}


class BlockDrafter(nn.Module):
    """Drafts a block in one pass over the stages; implements the ``speculator`` seam's Drafter.

    Row 0 of a block holds the newest token, the others the noise token; all of them see each other and, through
    one ring of keys per stage, the model's last ``window_size`` positions. The model's embedding and head serve
    the drafter too.
    """

    def __init__(self, config: DrafterConfig, model: Model, context: ModelContext) -> None:
        super().__init__()
        self.config = config
        self._embed_tokens, self._logits = model.embed_tokens, model.logits
        self._kernels = context.kernels
        self._ring = config.attention.window_size + context.rollback
        self._stages = [Stage(config, index) for index in range(config.num_stages)]
        self.mtp = nn.ModuleList(self._stages)
        self._inv_freq = inverse_frequencies(config.rope, config.attention.rope_head_dim).to(context.device)

    @property
    def module(self) -> nn.Module:
        """The parameters."""
        return self

    @property
    def num_drafts(self) -> int:
        """The block's length: every row of it yields a draft."""
        return self.config.block_size

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """As the config has them."""
        return self.config.feature_layers

    def weight_specs(self) -> Iterator[WeightSpec]:
        """See :func:`deepinfer_kernels.modules.checkpoint_tensors`."""
        return (WeightSpec(*tensor) for tensor in checkpoint_tensors(self))

    def unused_tensor(self, name: str) -> str | None:
        """Why the drafter does without a checkpoint tensor."""
        return next((reason for pattern, reason in OTHER_PARTS.items() if re.match(pattern, name)), None)

    def cache_layout(self) -> CacheLayout:
        """A ring of main keys per stage, longer than the window by what a step may observe in vain."""
        shape = (self._ring, CODECS[WINDOW_CODEC].record_bytes(self.config.attention.head_dim))
        return CacheLayout((), tuple(StateBuffer(stage.ring, shape, "uint8") for stage in self._stages))

    def build_metadata(self, rows: BatchRows) -> dict[str, NDArray[Any]]:
        """The M rows whose keys stay in the rings: what later rows of a chunk overwrite is not worth computing.

        ``mtp.rows``, ``mtp.positions``, ``mtp.places``: ``[M]`` int64, rows of the step, their positions and their flat
        places in a ring.
        """
        places = rows.ring_places(self._ring)
        kept = np.flatnonzero(places >= 0)
        return {"mtp.rows": kept, "mtp.positions": rows.positions[kept], "mtp.places": places[kept]}

    def new_features(self, rows: int) -> LayerFeatures:
        """See :class:`deepinfer_core.interfaces.speculator.Drafter`."""
        layers, norm = self.feature_layers, self._stages[0].main_norm.weight
        return LayerFeatures(layers, norm.new_empty(rows, len(layers), self.config.hidden_size))

    @torch.inference_mode()
    def observe(
        self, batch: InputBatch, features: LayerFeatures | None, caches: Mapping[str, Tensor], tap: Tap | None = None
    ) -> None:
        """See :class:`deepinfer_core.interfaces.speculator.Drafter`."""
        assert features is not None, "a drafter with feature layers is given their features"
        first, ops = self._stages[0], self._kernels
        rows, positions, places = (batch.metadata[f"mtp.{part}"] for part in ("rows", "positions", "places"))
        main = first.main_proj.apply_to(ops, features.values[rows].flatten(1))
        main = ops.rms_norm(main, first.main_norm.weight, self.config.rms_norm_eps)
        if tap is not None:
            tap("mtp.main_x", main)
        rope = ops.rope_table(positions, self._inv_freq)
        for stage in self._stages:
            ops.store_records(caches[stage.ring], places, stage.attn.window_records(ops, main, rope))

    @torch.inference_mode()
    def propose(self, batch: DraftBatch, caches: Mapping[str, Tensor], pick: Pick, tap: Tap | None = None) -> Proposal:
        """See :class:`deepinfer_core.interfaces.speculator.Drafter`."""
        hidden = self._hidden(batch, caches, tap)
        last, ops, (size, count, _) = self._stages[-1], self._kernels, hidden.shape
        normed = ops.rms_norm(hidden.flatten(0, 1), last.norm.weight, self.config.rms_norm_eps)
        if tap is not None:
            tap("mtp.norm_in", hidden)
            tap("mtp.norm_out", normed)
        logits = self._logits(normed).unflatten(0, (size, count))
        drafts, confidences, previous = [], [], batch.token_ids
        for depth in range(size if batch.num_drafts is None else min(size, batch.num_drafts)):
            embedding = last.markov_head.embedding(previous)
            logits[depth] += last.markov_head.bias(ops, embedding)
            confidences.append(last.confidence_head.log_odds(ops, hidden[depth], embedding))
            previous = pick(depth, logits[depth])
            drafts.append(previous)
        return Proposal(torch.stack(drafts, 1), logits.transpose(0, 1), torch.stack(confidences, 1))

    def _hidden(self, batch: DraftBatch, caches: Mapping[str, Tensor], tap: Tap | None) -> Tensor:
        """The stages' result before the last norm, ``[B,S,d]`` bf16: by depth, as it is drafted from."""
        size, mult = self.config.block_size, self.config.hyper_connection.mult
        token_ids = batch.token_ids.new_full((len(batch), size), self.config.noise_token_id)
        token_ids[:, 0] = batch.token_ids
        offsets = torch.arange(size, device=batch.positions.device)
        rope = self._kernels.rope_table((batch.positions[:, None] + offsets).flatten(), self._inv_freq)
        step = DraftStep(self._kernels, caches, batch.slots, batch.positions.to(torch.int32), rope, tap)
        streams = self._embed_tokens(token_ids.flatten())[:, None].repeat(1, mult, 1)
        pre = first_mix(len(streams), mult, streams.device)
        for stage in self._stages:
            streams, pre = stage.run(step, streams, pre)
        hidden: Tensor = self._kernels.hyper_connection_collapse(streams, pre)
        by_depth: Tensor = hidden.unflatten(0, (len(batch), size)).transpose(0, 1)
        return by_depth.contiguous()
