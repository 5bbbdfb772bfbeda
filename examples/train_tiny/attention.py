"""Latent attention over a sliding window and compressed entries, with the indexer that chooses among them.

The choice is hard, so no gradient passes through it: the indexer learns to match the attention that rows pay
(as in DeepSeek-V3.2's report, arXiv:2512.02556), on detached inputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import quant
from .layers import Dense, Norm, Numerics, product, rotate

_HIDDEN = -1e30


class Memory(NamedTuple):
    """What later layers reuse of a KV source and an index source. ``L`` compressed entries."""

    keys: Tensor
    """``[B, L, D]`` rotated and rounded."""
    index_keys: Tensor
    """``[B, L, Di]``."""
    allowed: Tensor
    """Bool ``[B or 1, T, L]``: which entries a row reads."""
    candidates: Tensor | None
    """Bool ``[B, T, L]``: which entries later indexers may choose."""


def visible_entries(length: int, ratio: int, device: torch.device) -> Tensor:
    """Bool ``[1, T, T // ratio]``: complete groups at or before each row."""
    rows = torch.arange(length, device=device)
    return (torch.arange(length // ratio, device=device) < ((rows + 1) // ratio)[:, None])[None]


def top_entries(scores: Tensor, count: int) -> Tensor:
    """Bool like ``scores [..., L]`` bf16: the ``count`` largest, lowest index first among equals."""
    if scores.shape[-1] <= count:
        return torch.ones_like(scores, dtype=torch.bool)
    bits = (scores + 0.0).contiguous().view(torch.int16).to(torch.int32)
    ordered = torch.where(bits >= 0, bits, -(bits & 0x7FFF))
    index = torch.arange(scores.shape[-1], device=scores.device, dtype=torch.int32)
    unique = ordered * 4096 + (4095 - index)
    return unique >= unique.topk(count).values[..., -1:]


class Compressor(nn.Module):
    """Pools groups of ``ratio`` tokens into latents."""

    def __init__(self, config: Any, ratio: int) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.attention.head_dim
        self.ratio = ratio
        self.wkv = Dense(hidden, dim)
        self.norm = Norm(dim, config.rms_norm_eps)
        if ratio > 1:
            self.wgate = Dense(hidden, dim)

    def forward(self, x: Tensor, numerics: Numerics) -> Tensor:
        """``x [B,T,d]`` → ``[B, T // ratio, D]``."""
        if self.ratio == 1:
            return self.norm(self.wkv(x, numerics))
        x = x[:, : x.shape[1] // self.ratio * self.ratio]
        values = self.wkv(x, numerics, torch.float32).unflatten(1, (-1, self.ratio))
        scores = self.wgate(x, numerics, torch.float32).unflatten(1, (-1, self.ratio))
        return self.norm((values * scores.softmax(2)).sum(2).to(torch.bfloat16))


class Indexer(nn.Module):
    """Scores entries."""

    def __init__(self, config: Any, owns_keys: bool) -> None:
        super().__init__()
        settings = config.indexer
        self.settings = settings
        self.wq_b = Dense(config.attention.q_lora_rank, settings.num_heads * settings.head_dim, "fp8")
        self.weights_proj = Dense(config.hidden_size, settings.num_heads)
        if owns_keys:
            self.wk = Dense(config.attention.head_dim, settings.head_dim)
            self.k_norm = Norm(settings.head_dim, config.rms_norm_eps)

    def keys(self, latent: Tensor, table: Tensor, numerics: Numerics) -> Tensor:
        """Latents ``[B,L,D]`` before rotation → index keys ``[B,L,Di]``."""
        keys = rotate(self.k_norm(self.wk(latent, numerics)), table)
        return quant.straight_through(keys, quant.fp4_groups) if numerics.quantize else keys

    def scores(self, x: Tensor, q_latent: Tensor, keys: Tensor, table: Tensor, numerics: Numerics) -> Tensor:
        """``x [B,T,d]``, ``q_latent [B,T,R]`` → ``[B,T,L]`` bf16; the dot, the weighting and the sum each round."""
        heads, dim = self.settings.num_heads, self.settings.head_dim
        q = self.wq_b(q_latent, numerics).unflatten(-1, (heads, dim)).transpose(1, 2)
        q = rotate(q, table)
        if numerics.quantize:
            q = quant.straight_through(q, quant.fp4_groups)
        weights = self.weights_proj(x, numerics) * (dim**-0.5 * heads**-0.5)
        dots = torch.einsum("bhtd,bld->bhtl", q.float(), keys.float()) if numerics.precise else q @ keys[:, None].mT
        weighted = dots.to(torch.bfloat16).relu() * weights.transpose(1, 2)[..., None]
        return weighted.float().sum(1).to(torch.bfloat16)

    def choose(self, scores: Tensor, visible: Tensor, memory: Memory, selects: bool, restricted: bool) -> Memory:
        """Which entries rows read from now on, by ``scores``."""
        hidden = torch.finfo(torch.bfloat16).min
        pool = visible & memory.candidates if restricted and memory.candidates is not None else visible
        allowed = top_entries(scores.masked_fill(~pool, hidden), self.settings.topk) & pool
        candidates = memory.candidates
        if selects:
            candidates = self._candidates(scores.masked_fill(~visible, hidden), visible)
        return memory._replace(allowed=allowed, candidates=candidates)

    def _candidates(self, scores: Tensor, visible: Tensor) -> Tensor:
        """The best blocks, the one of the newest entry always among them."""
        size, length = self.settings.candidate_block_size, scores.shape[-1]
        padded = functional.pad(scores, (0, -length % size), value=torch.finfo(torch.bfloat16).min)
        best = padded.unflatten(-1, (-1, size)).amax(-1)
        newest = (visible.sum(-1, keepdim=True) - 1).clamp_min(0) // size
        blocks = torch.arange(best.shape[-1], device=scores.device)
        best = best.masked_fill(blocks == newest, torch.finfo(torch.bfloat16).max)
        kept = top_entries(best, self.settings.candidate_topk_blocks)
        return kept.repeat_interleave(size, -1)[..., :length]


class Attention(nn.Module):
    """All heads share one key per entry, which is also its value."""

    def __init__(self, config: Any, ratio: int, owns_kv: bool, has_indexer: bool) -> None:
        super().__init__()
        settings, hidden, eps = config.attention, config.hidden_size, config.rms_norm_eps
        self.settings, self.ratio = settings, ratio
        self.wq_a = Dense(hidden, settings.q_lora_rank, "fp8")
        self.q_norm = Norm(settings.q_lora_rank, eps)
        self.wq_b = Dense(settings.q_lora_rank, settings.num_heads * settings.head_dim, "fp8")
        self.wkv = Dense(hidden, settings.head_dim, "fp8")
        self.kv_norm = Norm(settings.head_dim, eps)
        self.attn_sink = nn.Parameter(torch.zeros(settings.num_heads))
        self.wo_a = Dense(settings.group_dim, settings.o_groups * settings.o_lora_rank, "fp8")
        self.wo_b = Dense(settings.o_groups * settings.o_lora_rank, hidden, "fp8", gain=0.2)
        if owns_kv:
            self.compressor = Compressor(config, ratio)
        if has_indexer:
            self.indexer = Indexer(config, owns_kv)

    def project_in(self, x: Tensor, table: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor, Tensor]:
        """``x [B,T,d]`` → query latent ``[B,T,R]``, rotated queries ``[B,H,T,D]``, rotated window keys ``[B,T,D]``."""
        latent = self.q_norm(self.wq_a(x, numerics))
        q = self.wq_b(latent, numerics).unflatten(-1, (self.settings.num_heads, -1)).transpose(1, 2)
        keys = rotate(self.kv_norm(self.wkv(x, numerics)), table)
        return latent, rotate(q, table), quant.straight_through(keys, quant.fp8_groups) if numerics.quantize else keys

    def compress(self, x: Tensor, table: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """Compressed keys ``[B,L,D]`` and index keys ``[B,L,Di]`` of a KV source; ``table`` is the entries'."""
        latent = self.compressor(x, numerics)
        keys = rotate(latent, table)
        if numerics.quantize:
            keys = quant.straight_through(keys, quant.fp4_fine_groups)
        return keys, self.indexer.keys(latent.detach(), table, numerics)

    def window_scores(self, q: Tensor, keys: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """Scores of rows over their block and the one before ``[B,blocks,H,W,2W]``, and those keys ``[B,blocks,2W,D]``.

        ``q [B,H,T,D]`` and ``keys [B,T,D]`` with ``T`` a multiple of the window ``W``.
        """
        window = self.settings.window_size
        blocks = keys.unflatten(1, (-1, window))
        pairs = torch.cat([functional.pad(blocks[:, :-1], (0, 0, 0, 0, 1, 0)), blocks], 2)
        rows = q.unflatten(2, (-1, window)).transpose(1, 2)
        scores = _dot(rows.flatten(2, 3), pairs, numerics).unflatten(2, (-1, window))
        at = torch.arange(2 * window, device=q.device)
        row = torch.arange(window, device=q.device)[:, None]
        seen = (at > row) & (at <= row + window)
        first = torch.arange(blocks.shape[1], device=q.device)[:, None, None] == 0
        seen = seen & ~(first & (at < window))
        scale = self.settings.head_dim**-0.5
        return (scores.float() * scale).masked_fill(~seen[:, None], _HIDDEN), pairs

    def attend(
        self, q: Tensor, window: Tensor, keys: Tensor | None, allowed: Tensor | None, numerics: Numerics
    ) -> tuple[Tensor, Tensor | None]:
        """``q [B,H,T,D]`` → ``[B,H,T,D]`` bf16 and the unnormalised weights of compressed entries ``[B,H,T,L]``."""
        length = q.shape[2]
        padding = -length % self.settings.window_size
        if padding:
            q, window = functional.pad(q, (0, 0, 0, padding)), functional.pad(window, (0, 0, 0, padding))
        near, pairs = self.window_scores(q, window, numerics)
        peak = near.amax(-1, keepdim=True)
        far = None
        if keys is not None and allowed is not None:
            far = _dot(q.flatten(1, 2), keys, numerics).unflatten(1, (q.shape[1], -1)).float()
            far = far * self.settings.head_dim**-0.5
            far = far.masked_fill(~functional.pad(allowed, (0, 0, 0, padding))[:, None], _HIDDEN)
            peak = torch.maximum(peak, self._in_blocks(far.amax(-1, keepdim=True)))
        peak = peak.detach()
        near = (near - peak).exp()
        total = near.sum(-1, keepdim=True) + (self.attn_sink[:, None, None] - peak).exp()
        out = _dot(near.to(torch.bfloat16).flatten(2, 3), pairs.mT, numerics).unflatten(2, near.shape[2:4]).float()
        if far is not None and keys is not None:
            far = (far - self._in_rows(peak)).exp()
            total = total + self._in_blocks(far.sum(-1, keepdim=True))
            more = _dot(far.to(torch.bfloat16).flatten(1, 2), keys.mT, numerics).unflatten(1, (q.shape[1], -1))
            out = out + self._in_blocks(more.float())
            far = far[:, :, :length]
        return self._in_rows(out / total).to(torch.bfloat16)[:, :, :length], far

    def _in_blocks(self, x: Tensor) -> Tensor:
        """``[B,H,T,·]`` → ``[B,blocks,H,W,·]``."""
        return x.unflatten(2, (-1, self.settings.window_size)).transpose(1, 2)

    def _in_rows(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`_in_blocks`."""
        return x.transpose(1, 2).flatten(2, 3)

    def project(self, out: Tensor, table: Tensor, numerics: Numerics) -> Tensor:
        """Heads ``[B,H,T,D]`` → ``[B,T,d]``."""
        groups = rotate(out, table, inverse=True).transpose(1, 2).flatten(2).chunk(self.settings.o_groups, -1)
        weights = self.wo_a.rounded(numerics).chunk(self.settings.o_groups, 0)
        latent = torch.cat([product(x, w, numerics) for x, w in zip(groups, weights, strict=True)], -1)
        return self.wo_b(latent, numerics)


def _dot(x: Tensor, y: Tensor, numerics: Numerics) -> Tensor:
    """``x [..., R, K]`` and ``y [..., C, K]`` → ``[..., R, C]``."""
    return x.float() @ y.float().mT if numerics.precise else x @ y.mT
