"""DeepSeek-V4.1's text model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deepinfer_core.errors import CheckpointError, ConfigError
from deepinfer_core.interfaces.cache import CacheLayout
from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, ModelContext, Tap
from deepinfer_core.interfaces.weights import WeightSpec
from deepinfer_kernels import modules
from deepinfer_kernels.modules import (
    Linear,
    MixtureOfExperts,
    Norm,
    checkpoint_tensors,
    first_mix,
    inverse_frequencies,
)

from .attention import Attention
from .cache import cache_layout
from .config import DeepseekV41Config
from .engram import Engram, HashLayout, TokenHasher, compressed_token_map
from .metadata import step_metadata
from .step import Step

if TYPE_CHECKING:
    from .layer_plan import LayerSpec, RopeKind

#: Parts of a checkpoint that the text model does not run, and whose they are.
OTHER_PARTS = {
    r"mtp\.": "belongs to the drafter",
    r"(vision|aligner)\.|image_(start|end|newline)$": "belongs to the vision tower",
    r"layers\.\d+\.ffn\.gate\.bias_vl$": "routes image rows only",
}


class Block(modules.Block[Step]):
    """One layer: engram (where the plan has it), attention, experts."""

    def __init__(self, config: DeepseekV41Config, spec: LayerSpec) -> None:
        name = f"layers.{spec.index}"
        super().__init__(name, config, Attention(config, spec), MixtureOfExperts(config, name))
        self._layer = spec.index
        if spec.engram:
            self.engram = Engram(config, spec.index)

    def recall(self, step: Step, streams: Tensor, engram_rows: Mapping[int, Tensor]) -> Tensor:
        """``streams [N,m,d]`` bf16 with what the n-gram memory, if this layer has one, holds for each row."""
        if self._layer in engram_rows:
            streams = self.engram.run(step, streams, engram_rows[self._layer])
            step.observe(f"{self._name}.engram_out", streams)
        step.observe(f"{self._name}.streams_in", streams)
        return streams


class TextModel(nn.Module):
    """The trunk; implements the ``model`` seam's Model."""

    def __init__(self, config: DeepseekV41Config, context: ModelContext) -> None:
        super().__init__()
        self.config = config
        self._kernels, self._rollback = context.kernels, context.rollback
        self.embed = Linear(config.hidden_size, config.vocab_size)
        self._blocks = [Block(config, spec) for spec in config.plan.layers]
        self.layers = nn.ModuleList(self._blocks)
        self.norm = Norm(config.hidden_size)
        self.head = self.embed if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._hasher = _token_hasher(config, context)
        rope_dim = config.attention.rope_head_dim
        self._inv_freq: dict[RopeKind, Tensor] = {
            "window": inverse_frequencies(config.rope_window, rope_dim).to(context.device),
            "compressed": inverse_frequencies(config.rope_compressed, rope_dim).to(context.device),
        }

    @property
    def module(self) -> nn.Module:
        """The parameters."""
        return self

    @property
    def token_lookback(self) -> int:
        """Tokens before a row that its n-grams reach."""
        return 0 if self.config.engram is None else self.config.engram.max_ngram - 1

    def weight_specs(self) -> Iterator[WeightSpec]:
        """See :func:`deepinfer_kernels.modules.checkpoint_tensors`."""
        return (WeightSpec(*tensor) for tensor in checkpoint_tensors(self))

    def unused_tensor(self, name: str) -> str | None:
        """Why the text model does without a checkpoint tensor."""
        if name in self.tied_tensors():
            return "tied to the embedding"
        return next((reason for pattern, reason in OTHER_PARTS.items() if re.match(pattern, name)), None)

    def tied_tensors(self) -> Mapping[str, str]:
        """The head, where the config ties it to the embedding."""
        return {"head.weight": "embed.weight"} if self.config.tie_word_embeddings else {}

    def cache_layout(self) -> CacheLayout:
        """Buffers of the layer plan."""
        return cache_layout(self.config, self._rollback)

    def build_metadata(self, rows: BatchRows) -> dict[str, NDArray[Any]]:
        """See :mod:`.metadata`."""
        return step_metadata(self.config, self._rollback, rows)

    @torch.inference_mode()
    def embed_tokens(self, token_ids: Tensor) -> Tensor:
        """``[R]`` int64 → ``[R,d]`` bf16."""
        return self.embed.weight[token_ids]

    @torch.inference_mode()
    def forward(
        self,
        batch: InputBatch,
        caches: Mapping[str, Tensor],
        tap: Tap | None = None,
        features: LayerFeatures | None = None,
    ) -> Tensor:
        """See :class:`deepinfer_core.interfaces.model.Model`."""
        step = Step(batch, caches, self._kernels, self._inv_freq, tap)
        mult = self.config.hyper_connection.mult
        hidden = self.embed_tokens(batch.token_ids)
        streams = hidden[:, None, :].repeat(1, mult, 1)
        pre = first_mix(len(batch), mult, hidden.device)
        engram_rows = {} if self._hasher is None else self._hasher.rows(batch.context_ids)
        for index, rows in engram_rows.items():
            step.observe(f"layers.{index}.engram_hash_ids", rows)
        for index, block in enumerate(self._blocks):
            streams = block.recall(step, streams, engram_rows)
            if features is not None and index in features.layers:
                features.at(index)[:] = self._mean(streams)
            streams, pre = block.run(step, streams, pre)
        collapsed = self._kernels.hyper_connection_collapse(streams, pre)
        return self._kernels.rms_norm(collapsed, self.norm.weight, self.config.rms_norm_eps)  # type: ignore[no-any-return]

    def _mean(self, streams: Tensor) -> Tensor:
        """``[N,m,d]`` bf16 → ``[N,d]`` bf16, in an order of summation that does not depend on the rows."""
        rows, mult, _ = streams.shape
        even = torch.full((rows, mult), 1 / mult, device=streams.device)
        return self._kernels.hyper_connection_collapse(streams, even)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``[R,d]`` bf16 → ``[R, vocab]`` f32."""
        return self._kernels.linear(hidden, self.head.kernel_weight(), torch.float32)  # type: ignore[no-any-return]


def _token_hasher(config: DeepseekV41Config, context: ModelContext) -> TokenHasher | None:
    """The engram layers' hasher, its table sizes and token map checked against the config."""
    settings = config.engram
    if settings is None:
        return None
    layout = HashLayout(settings)
    if any(have < need for have, need in zip(settings.num_embeddings, layout.rows, strict=True)):
        raise ConfigError(
            f"engram_num_embeddings must be at least {layout.rows} for engram_vocab_size {settings.vocab_size}, "
            f"got {list(settings.num_embeddings)}"
        )
    if context.tokenizer is None:
        raise CheckpointError("this model's engram layers need the checkpoint's tokenizer; tokenizer.json is missing")
    token_map = compressed_token_map(context.tokenizer, config.vocab_size)
    distinct = int(token_map.max()) + 1
    if distinct != settings.compressed_vocab_size:
        raise CheckpointError(
            f"the tokenizer has {distinct} distinct engram tokens but engram_compressed_vocab_size is "
            f"{settings.compressed_vocab_size}; the tokenizer is not the one this checkpoint was trained with"
        )
    return TokenHasher(settings, layout, token_map, context.device)
