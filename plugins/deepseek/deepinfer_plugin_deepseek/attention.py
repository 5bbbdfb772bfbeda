"""Latent attention over a sliding-window ring and, where the layer plan says so, compressed pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from deepinfer_kernels.codecs import COMPRESSED_CODEC, INDEX_CODEC
from deepinfer_kernels.modules import LatentAttention, Linear, Norm, dense_storage

from .cache import buffer_name
from .step import Step

if TYPE_CHECKING:
    from .config import DeepseekV41Config
    from .layer_plan import LayerSpec


class Compressor(nn.Module):
    """Pools each group of ``ratio`` tokens into one latent (a plain projection when the ratio is 1).

    DeepSeek-V4.1's: per channel, the softmax over a group of one projection weights another.
    """

    def __init__(self, config: DeepseekV41Config, spec: LayerSpec) -> None:
        super().__init__()
        dim = config.attention.head_dim
        self._spec, self._eps = spec, config.rms_norm_eps
        self.wkv = Linear(config.hidden_size, dim)
        self.norm = Norm(dim)
        if spec.ratio > 1:
            self.wgate = Linear(config.hidden_size, dim)

    def run(self, step: Step, x: Tensor) -> Tensor:
        """``x [N,d]`` → normed latents ``[G,D]`` bf16 of the groups that end in this step; keeps open groups' rows."""
        ops = step.kernels
        if self._spec.ratio == 1:
            latent = ops.linear(x, self.wkv.kernel_weight(), torch.bfloat16)
            return ops.rms_norm(latent, self.norm.weight, self._eps)  # type: ignore[no-any-return]
        values = ops.linear(x, self.wkv.kernel_weight(), torch.float32)
        scores = ops.linear(x, self.wgate.kernel_weight(), torch.float32)
        state, ratio = step.caches[buffer_name(self._spec.index, "compress_state")], self._spec.ratio
        pooled = ops.compress_pool(values, scores, state, step.of_ratio(ratio, "members"))
        ops.store_compress_state(values, scores, state, step.of_ratio(ratio, "ring_places"))
        return ops.rms_norm(pooled.to(torch.bfloat16), self.norm.weight, self._eps)  # type: ignore[no-any-return]


class Indexer(nn.Module):
    """Scores compressed entries and picks those that a row attends to; owns the index keys at KV sources.

    The lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556), over compressed entries and in two levels: a layer may
    choose blocks of candidates for those after it.
    """

    def __init__(self, config: DeepseekV41Config, spec: LayerSpec) -> None:
        super().__init__()
        settings = config.indexer
        assert settings is not None, "the layer plan admits indexers only with index settings"
        self._settings, self._spec, self._eps = settings, spec, config.rms_norm_eps
        self.wq_b = Linear(config.attention.q_lora_rank, settings.num_heads * settings.head_dim, dense_storage(config))
        self.weights_proj = Linear(config.hidden_size, settings.num_heads)
        if spec.owns_kv:
            self.wk = Linear(config.attention.head_dim, settings.head_dim)
            self.k_norm = Norm(settings.head_dim)

    def store_keys(self, step: Step, latent: Tensor) -> None:
        """Write the index keys of this step's new entries, made from their latents ``[G,D]`` before rotation."""
        ops, ratio = step.kernels, self._spec.ratio
        keys = ops.linear(latent, self.wk.kernel_weight(), torch.bfloat16)
        keys = ops.rms_norm(keys, self.k_norm.weight, self._eps)
        keys = ops.apply_rope(keys[:, None, :], *step.rope(self._spec.rope, ratio), False)[:, 0, :]
        cache = step.caches[buffer_name(self._spec.index, "index_keys")]
        ops.store_records(cache, step.of_ratio(ratio, "entries"), ops.pack_kv(keys.contiguous(), INDEX_CODEC))

    def choose(self, step: Step, x: Tensor, q_latent: Tensor) -> None:
        """Pick the rows' entries (and candidate blocks) and leave them in ``step``."""
        ops, settings, spec, batch = step.kernels, self._settings, self._spec, step.batch
        rows = len(batch)
        q = self.wq_b.apply_to(ops, q_latent).view(rows, settings.num_heads, settings.head_dim)
        q = ops.apply_rope(q, *step.rope(spec.rope), False)
        q = ops.quantize_dequantize(q.flatten(0, 1), INDEX_CODEC).view_as(q)
        weights = self.weights_proj.apply_to(ops, x) * (settings.head_dim**-0.5 * settings.num_heads**-0.5)
        candidates = None if spec.candidate_source is None else step.candidates[spec.candidate_source]
        topk, blocks = ops.index_topk(
            q,
            weights,
            step.caches[buffer_name(spec.kv_source, "index_keys")],
            batch.block_tables,
            batch.seq_of_row,
            step.of_ratio(spec.ratio, "visible"),
            settings.topk,
            candidates,
            settings.candidate_block_size,
            settings.candidate_topk_blocks if spec.selects_candidates else 0,
        )
        step.topk[spec.index] = topk
        step.observe(f"layers.{spec.index}.index_topk", topk)
        if blocks is not None:
            step.candidates[spec.index] = blocks
            step.observe(f"layers.{spec.index}.candidate_blocks", blocks)


class Attention(LatentAttention):
    """Latent attention over the window and the entries that the layer plan gives it."""

    def __init__(self, config: DeepseekV41Config, spec: LayerSpec) -> None:
        super().__init__(config)
        self._spec = spec
        if spec.owns_kv:
            self.compressor = Compressor(config, spec)
        if spec.has_indexer:
            self.indexer = Indexer(config, spec)

    def run(self, step: Step, x: Tensor) -> Tensor:
        """``x [N,d]`` bf16 → bf16 ``[N,d]``."""
        ops, rope = step.kernels, step.rope(self._spec.rope)
        q_latent, q = self.queries(ops, x, rope)
        records = self.window_records(ops, x, rope)
        if self._spec.owns_kv:
            self._store_compressed(step, x)
        if self._spec.has_indexer:
            self.indexer.choose(step, x, q_latent)
        out = self._attend(step, q, records)
        self._store_window(step, records)
        return self.output(ops, out, rope)

    def _store_compressed(self, step: Step, x: Tensor) -> None:
        """Make and write this step's new compressed entries, before any row reads them."""
        ops, ratio = step.kernels, self._spec.ratio
        latent = self.compressor.run(step, x)
        step.observe(f"layers.{self._spec.index}.latent_pre_rope", latent)
        self.indexer.store_keys(step, latent)
        kv = ops.apply_rope(latent[:, None, :], *step.rope(self._spec.rope, ratio), False)[:, 0, :]
        cache = step.caches[buffer_name(self._spec.index, "compressed")]
        ops.store_records(cache, step.of_ratio(ratio, "entries"), ops.pack_kv(kv.contiguous(), COMPRESSED_CODEC))

    def _attend(self, step: Step, q: Tensor, records: Tensor) -> Tensor:
        batch, spec = step.batch, self._spec
        compressed: tuple[Tensor | None, ...] = (None, None, None, None)
        if spec.kv_source is not None and spec.index_source is not None:
            cache = step.caches[buffer_name(spec.kv_source, "compressed")]
            compressed = (cache, batch.block_tables, batch.seq_of_row, step.topk[spec.index_source])
        return step.kernels.sparse_attention(  # type: ignore[no-any-return]
            q,
            self.attn_sink,
            self._settings.softmax_scale,
            step.caches[buffer_name(spec.index, "window")],
            records,
            batch.slots,
            batch.starts,
            step.positions,
            self._settings.window_size,
            *compressed,
        )

    def _store_window(self, step: Step, records: Tensor) -> None:
        """Keep the chunk's last keys in the ring. After reading: a ring place may hold a key still to be read."""
        cache = step.caches[buffer_name(self._spec.index, "window")]
        step.kernels.store_records(cache, step.window_places, records)
