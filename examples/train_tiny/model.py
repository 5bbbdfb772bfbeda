"""The trunk as a differentiable PyTorch model, described by the engine's own config."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepinfer_kernels.modules import inverse_frequencies

from .attention import Attention, Memory, visible_entries
from .experts import MixtureOfExperts
from .layers import Dense, Engram, HyperConnection, Norm, Numerics, collapse, expand

#: Rows of the batch on which the indexers learn: one sequence in this many.
INDEX_LOSS_SHARE = 8


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: Any, spec: Any) -> None:
        super().__init__()
        self.spec = spec
        hidden, eps = config.hidden_size, config.rms_norm_eps
        if spec.engram:
            self.engram = Engram(config, spec.index)
        self.attn_norm, self.ffn_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.attn = Attention(config, spec.ratio, spec.owns_kv, spec.has_indexer)
        self.ffn = MixtureOfExperts(config, config.moe.num_routed_experts, config.moe.num_experts_per_token)
        self.hc_attn = HyperConnection(config, 2 * spec.index)
        self.hc_ffn = HyperConnection(config, 2 * spec.index + 1)

    def forward(
        self,
        streams: Tensor,
        pre: Tensor,
        tables: tuple[Tensor, Tensor],
        rows: Tensor | None,
        keep: Tensor,
        memory: Memory | None,
        numerics: Numerics,
    ) -> tuple[Tensor, Tensor, Memory | None, Tensor, Tensor, Tensor]:
        """``streams [B,T,m,d]`` and the mix handed on ``[B,T,m]``, both returned changed.

        tables: rotary tables at rows, and at compressed entries. rows: n-gram table rows of engram layers;
        keep ``[B,T,1,1]`` is 0 where they are to be empty.
        Also returns the memory, the stream mean at the layer's input ``[B,T,d]``, expert loads and index loss.
        """
        if rows is not None:
            streams = self.engram(streams, self.engram.lookup(rows) * keep, numerics)
        x, feature, (pre, post, comb) = self.enter(streams, pre, numerics)
        out, memory, index = self._attention(x, tables, memory, numerics)
        streams = self.leave(out, tables[0], streams, post, comb, numerics)
        streams, pre, counts = self.feed_forward(streams, pre, numerics)
        return streams, pre, memory, feature, counts, index

    def enter(self, streams: Tensor, pre: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The attention's input ``[B,T,d]``, the stream mean, and the mixing coefficients."""
        feature = streams.float().mean(-2).to(torch.bfloat16)
        return self.attn_norm(collapse(streams, pre)), feature, self.hc_attn(streams, numerics)

    def leave(
        self, out: Tensor, table: Tensor, streams: Tensor, post: Tensor, comb: Tensor, numerics: Numerics
    ) -> Tensor:
        """The streams after attention's heads ``out [B,H,T,D]``."""
        return expand(thinned(self.attn.project(out, table, numerics), numerics), streams, post, comb)

    def feed_forward(self, streams: Tensor, pre: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor, Tensor]:
        """The second half of the layer: streams, next mix, expert loads."""
        x, (pre, post, comb) = collapse(streams, pre), self.hc_ffn(streams, numerics)
        y, counts = self.ffn(self.ffn_norm(x), numerics)
        return expand(thinned(y, numerics), streams, post, comb), pre, counts

    def _attention(
        self, x: Tensor, tables: tuple[Tensor, Tensor], memory: Memory | None, numerics: Numerics
    ) -> tuple[Tensor, Memory | None, Tensor]:
        """Heads ``[B,H,T,D]``, the memory for later layers, the index loss."""
        attn, spec = self.attn, self.spec
        loss = torch.zeros((), device=x.device)
        q_latent, q, window = attn.project_in(x, tables[0], numerics)
        if not spec.ratio:
            return attn.attend(q, window, None, None, numerics)[0], memory, loss
        visible = visible_entries(x.shape[1], spec.ratio, x.device)
        if spec.owns_kv:
            candidates = memory.candidates if memory is not None else None
            memory = Memory(*attn.compress(x, tables[1], numerics), visible, candidates)
        assert memory is not None, "the layer plan puts a KV source at or before every consumer"
        if spec.has_indexer:
            memory = self._choose(x, q_latent, tables[0], memory, visible, numerics)
        out, weights = attn.attend(q, window, memory.keys, memory.allowed, numerics)
        if spec.has_indexer and self.training and weights is not None:
            part = max(1, len(x) // INDEX_LOSS_SHARE)
            inputs = x[:part].detach(), q_latent[:part].detach(), memory.index_keys[:part]
            scores = attn.indexer.scores(*inputs, tables[0], numerics)
            loss = index_loss(scores, weights[:part].detach(), memory.allowed[:part].expand_as(scores))
        return out, memory, loss

    @torch.no_grad()
    def _choose(
        self, x: Tensor, q_latent: Tensor, table: Tensor, memory: Memory, visible: Tensor, numerics: Numerics
    ) -> Memory:
        indexer, spec = self.attn.indexer, self.spec
        if not numerics.select or visible.shape[-1] <= indexer.settings.topk:
            return memory._replace(allowed=visible)
        scores = indexer.scores(x, q_latent, memory.index_keys, table, numerics)
        return indexer.choose(scores, visible, memory, spec.selects_candidates, spec.candidate_source is not None)


def thinned(x: Tensor, numerics: Numerics) -> Tensor:
    """What a sublayer adds, some of it left out."""
    return functional.dropout(x, numerics.dropout) if numerics.dropout else x


def index_loss(scores: Tensor, weights: Tensor, visible: Tensor) -> Tensor:
    """Mean cross-entropy of index ``scores [B,T,L]`` against the attention paid, ``weights [B,H,T,L]``, over the
    entries that a row could read, ``visible [B,T,L]``."""
    paid = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)
    paid = paid.mean(1)
    logits = scores.float().masked_fill(~visible, -1e30).log_softmax(-1)
    return -(paid * logits.masked_fill(~visible, 0)).sum() / visible.any(-1).sum().clamp_min(1)


class TinyModel(nn.Module):
    """Parameters are f32 under their published names (but for stacks of experts and the hyper-connections)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.engram_dropout = 0.0
        """Mean share of tokens that train without their n-grams, so that attention has something to learn too."""
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.layers = nn.ModuleList(Block(config, spec) for spec in config.plan.layers)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.head = Dense(config.hidden_size, config.vocab_size, gain=0.3)

    def tables(self, length: int, ratio: int) -> tuple[Tensor, Tensor]:
        """Rotary tables ``[2, T, R/2]`` of a layer, at rows and at entries of ``ratio`` tokens."""
        rope = self.config.rope_compressed if ratio else self.config.rope_window
        frequencies = inverse_frequencies(rope, self.config.attention.rope_head_dim)
        angles = (torch.arange(length).float()[:, None] * frequencies).double()
        rows = torch.stack([angles.cos(), angles.sin()]).float()
        step = max(ratio, 1)
        return rows, rows[:, : length // step * step : step].contiguous()

    def forward(
        self, tokens: Tensor, rows: dict[int, Tensor], numerics: Numerics
    ) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
        """``tokens [B,T]`` and n-gram rows ``{layer: [B,T,C]}`` → final hidden ``[B,T,d]`` bf16.

        Also every layer's feature ``[B,T,d]`` for the drafter, expert loads, and the sum of index losses.
        """
        mult = self.config.hyper_connection.mult
        streams = self.embed(tokens).to(torch.bfloat16)[:, :, None].repeat(1, 1, mult, 1)
        pre = torch.zeros(*tokens.shape, mult, device=tokens.device)
        pre[..., 0] = 1.0
        keep = torch.ones(*tokens.shape, 1, 1, device=tokens.device)
        if self.training and self.engram_dropout:
            # Each sequence has its own share: some have to do with almost none.
            share = 2 * self.engram_dropout * torch.rand(len(tokens), 1, 1, 1, device=tokens.device)
            keep = (torch.rand_like(keep) >= share).float()
        memory, features, loads, index = None, [], [], torch.zeros((), device=tokens.device)
        tables = {ratio: self.tables(tokens.shape[1], ratio) for ratio in {s.ratio for s in self.config.plan.layers}}
        for block in self.layers:
            spec = block.spec
            streams, pre, memory, feature, counts, loss = block(
                streams, pre, tables[spec.ratio], rows.get(spec.index), keep, memory, numerics
            )
            features.append(feature)
            loads.append(counts)
            index = index + loss
        return self.norm(collapse(streams, pre)), features, loads, index

    def logits(self, hidden: Tensor, numerics: Numerics) -> Tensor:
        """``[..., d]`` → ``[..., vocab]`` f32."""
        return self.head(hidden, numerics, torch.float32)

    @torch.no_grad()
    def balance(self, loads: list[Tensor], step: float) -> None:
        """Move every router's bias towards an even load."""
        for block, counts in zip(self.layers, loads, strict=True):
            block.ffn.balance(counts, step)


def compile_parts() -> None:
    """Let torch fuse the parts that all layers share; each is compiled once, not once per layer."""
    torch._dynamo.config.recompile_limit = 32
    for owner, names in (
        (Block, ("enter", "leave", "feed_forward")),
        (Attention, ("project_in", "attend", "compress")),
        (Engram, ("forward",)),
    ):
        for name in names:
            setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False))
