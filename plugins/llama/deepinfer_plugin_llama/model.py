"""A dense decoder: embedding, layers, final norm, head."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepinfer_core.interfaces.cache import CacheLayout
from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, ModelContext, Tap
from deepinfer_core.interfaces.weights import WeightSpec
from deepinfer_kernels.modules import Linear, Norm, RopeTable, checkpoint_tensors

from .config import LlamaConfig
from .layers import Layer
from .rotary import rotary_frequencies
from .step import Step, step_metadata

#: Types that checkpoints store weights in; they are held in bf16.
_STORED_AS = ("BF16", "F16", "F32")
#: Tensors of old checkpoints that follow from the config.
_DERIVED = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq$")


class Decoder(nn.Module):
    """The parameters, under their published names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Linear(config.hidden_size, config.vocab_size)
        self.blocks = [Layer(config, spec) for spec in config.plan.layers]
        self.layers = nn.ModuleList(self.blocks)
        self.norm = Norm(config.hidden_size)
        tied = config.tie_word_embeddings
        self.lm_head = self.embed_tokens if tied else Linear(config.hidden_size, config.vocab_size)


class DenseModel:
    """Implements the ``model`` seam's Model. Keeps keys and values in pages, and nothing else between steps."""

    token_lookback = 0

    def __init__(self, config: LlamaConfig, context: ModelContext) -> None:
        self.config = config
        self._kernels = context.kernels
        self._decoder = Decoder(config)
        self._frequencies = rotary_frequencies(config.rope, config.head_dim).to(context.device)

    @property
    def module(self) -> nn.Module:
        """The parameters."""
        return self._decoder

    def weight_specs(self) -> Iterator[WeightSpec]:
        """Every parameter by its own name, from any of the types that are stored."""
        for name, parameter, index, _ in checkpoint_tensors(self._decoder):
            yield WeightSpec(name, parameter, index, _STORED_AS)

    def unused_tensor(self, name: str) -> str | None:
        """Why a checkpoint tensor is left out."""
        if name in self.tied_tensors():
            return "tied to the embedding"
        return "follows from the config" if _DERIVED.match(name) else None

    def tied_tensors(self) -> Mapping[str, str]:
        """The head, where the config ties it to the embedding."""
        return {"lm_head.weight": "embed_tokens.weight"} if self.config.tie_word_embeddings else {}

    def cache_layout(self) -> CacheLayout:
        """Keys and values of every layer in pages; no slots."""
        pages = [buffer for block in self._decoder.blocks for buffer in block.self_attn.page_buffers()]
        return CacheLayout(tuple(pages), ())

    def build_metadata(self, rows: BatchRows) -> dict[str, NDArray[Any]]:
        """See :func:`.step.step_metadata`."""
        return step_metadata(rows, self.config.num_kv_heads)

    @torch.inference_mode()
    def embed_tokens(self, token_ids: Tensor) -> Tensor:
        """``[R]`` int64 → ``[R,d]`` bf16."""
        return self._decoder.embed_tokens.weight[token_ids]

    @torch.inference_mode()
    def forward(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        tap: Tap | None = None,
        features: LayerFeatures | None = None,
    ) -> Tensor:
        """See :class:`deepinfer_core.interfaces.model.Model`."""
        step = Step(batch, caches, self._kernels, self._rotation(batch.positions), tap)
        hidden = self.embed_tokens(batch.token_ids)
        for index, block in enumerate(self._decoder.blocks):
            if features is not None and index in features.layers:
                features.at(index)[:] = hidden
            hidden = block.run(step, hidden)
        return self._kernels.rms_norm(hidden, self._decoder.norm.weight, self.config.rms_norm_eps)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``[R,d]`` bf16 → ``[R, vocab]`` f32."""
        return self._kernels.linear(hidden, self._decoder.lm_head.kernel_weight(), torch.float32)  # type: ignore[no-any-return]

    def _rotation(self, positions: Tensor) -> RopeTable:
        cos, sin = self._kernels.rope_table(positions, self._frequencies)
        magnitude = self.config.rope.magnitude
        return (cos, sin) if magnitude == 1.0 else (cos * magnitude, sin * magnitude)
