"""Differentiable parts of the architecture, over ``[B, T, ...]`` batches of equally long sequences.

Activations are bf16 and round where the engine rounds. Products run in bf16, or in f32 where ``precise`` is
set; only the order of their sums then differs from the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import quant


@dataclass(frozen=True)
class Numerics:
    """How a forward computes.

    quantize: round weights, inputs and keys as the checkpoint's formats do.
    select: let the indexer choose which compressed entries a row reads (otherwise it reads all).
    precise: products in f32.
    dropout: share of what sublayers add that is left out.
    """

    quantize: bool = True
    select: bool = True
    precise: bool = False
    dropout: float = 0.0


def product(x: Tensor, weight: Tensor, numerics: Numerics, out: torch.dtype = torch.bfloat16) -> Tensor:
    """``x [..., K]`` and ``weight [M, K]``, both rounded to bf16 → ``[..., M]``."""
    weight = weight.to(torch.bfloat16)
    if numerics.precise:
        return functional.linear(x.float(), weight.float()).to(out)
    return functional.linear(x, weight).to(out)


class Dense(nn.Module):
    """A linear layer stored as ``fp8`` or ``bf16``, or a stack of ``experts`` stored as ``fp4``."""

    def __init__(
        self, inputs: int, outputs: int, storage: str = "bf16", *, experts: int = 0, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.storage = storage
        shape = (experts, outputs, inputs) if experts else (outputs, inputs)
        self.weight = nn.Parameter(torch.randn(shape) * (gain * inputs**-0.5))

    def rounded(self, numerics: Numerics) -> Tensor:
        """The weight as the checkpoint will hold it."""
        if not numerics.quantize or self.storage == "bf16":
            return self.weight
        return quant.straight_through(self.weight, quant.fp8_blocks if self.storage == "fp8" else quant.fp4_groups)

    def forward(self, x: Tensor, numerics: Numerics, out: torch.dtype = torch.bfloat16) -> Tensor:
        if numerics.quantize and self.storage != "bf16":
            x = quant.straight_through(x, quant.fp8_groups)
        return product(x, self.rounded(numerics), numerics, out)


class Norm(nn.Module):
    """RMS norm, f32 inside."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        value = x.float()
        value = value * torch.rsqrt(value.square().mean(-1, keepdim=True) + self.eps)
        return (value * self.weight.to(torch.bfloat16).float()).to(torch.bfloat16)


def rotate(x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the trailing dims of ``x [..., T, D]`` as adjacent pairs; ``table [2, T, R/2]`` is cos and sin."""
    cos, sin = table
    rotary = 2 * cos.shape[-1]
    plain, pairs = x[..., :-rotary], x[..., -rotary:].float().unflatten(-1, (-1, 2))
    sin = -sin if inverse else sin
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(-2)
    return torch.cat([plain, turned.to(x.dtype)], -1)


class HyperConnection(nn.Module):
    """Mixing coefficients of one sublayer."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        settings = config.hyper_connection
        mult = settings.mult
        self.mult, self.rounds = mult, settings.sinkhorn_iters
        self.eps, self.norm_eps = settings.eps, config.rms_norm_eps
        self.fn = nn.Parameter(torch.randn(mult * (2 + mult), mult * config.hidden_size) * 0.02)
        # Streams start equal: uneven reading and writing is what makes them differ.
        pre = torch.full((mult,), -1.5)
        pre[index % mult] = 1.0
        comb = 4.0 * torch.eye(mult)
        self.base = nn.Parameter(torch.cat([pre, 0.5 * torch.randn(mult), comb.flatten()]))
        self.scale = nn.Parameter(torch.full((3,), 0.1))

    def forward(self, streams: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor, Tensor]:
        """``streams [B,T,m,d]`` → pre ``[B,T,m]``, post ``[B,T,m]``, comb ``[B,T,m,m]``, f32."""
        flat = streams.flatten(2)
        value = flat.float()
        rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + self.norm_eps)
        if numerics.precise:
            mixes = functional.linear(value.double(), self.fn.double()).float() * rstd
        else:
            mixes = functional.linear(flat, self.fn.to(torch.bfloat16)).float() * rstd
        sizes = [self.mult, self.mult, self.mult**2]
        pre, post, comb = mixes.split(sizes, -1)
        pre_base, post_base, comb_base = self.base.split(sizes)
        pre = torch.sigmoid(pre * self.scale[0] + pre_base) + self.eps
        post = 2 * torch.sigmoid(post * self.scale[1] + post_base)
        return pre, post, self._balance((comb * self.scale[2] + comb_base).unflatten(-1, (self.mult, self.mult)))

    def _balance(self, comb: Tensor) -> Tensor:
        """Sinkhorn: rows, then columns, sum to one."""
        comb = comb.softmax(-1) + self.eps
        comb = comb / (comb.sum(-2, keepdim=True) + self.eps)
        for _ in range(self.rounds - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + self.eps)
            comb = comb / (comb.sum(-2, keepdim=True) + self.eps)
        return comb


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """``[B,T,m,d]`` → ``[B,T,d]``."""
    return (pre[..., None] * streams.float()).sum(-2).to(streams.dtype)


def expand(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The streams after a sublayer's output ``y [B,T,d]``."""
    value = streams.float()
    mixed = sum(comb[..., i, :, None] * value[..., i : i + 1, :] for i in range(streams.shape[-2]))
    return (post[..., None] * y.float()[..., None, :] + mixed).to(streams.dtype)


class Engram(nn.Module):
    """N-gram memory gated into each stream."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        settings, hidden, mult = config.engram, config.hidden_size, config.hyper_connection.mult
        rows = settings.num_embeddings[settings.layer_ids.index(layer)]
        self.eps, self.mult, self.hidden = config.rms_norm_eps, mult, hidden
        self.embed = nn.Embedding(rows, settings.head_dim)
        nn.init.normal_(self.embed.weight, std=0.05)
        self.wkv = Dense(settings.row_dim, (mult + 1) * hidden, "fp8")
        self.q_weight = nn.Parameter(torch.ones(mult, hidden))
        self.k_weight = nn.Parameter(torch.ones(mult, hidden))

    def lookup(self, rows: Tensor) -> Tensor:
        """Table rows ``[B,T,C]`` → what they hold ``[B,T,C,dim]`` f32."""
        return self.embed(rows)

    def forward(self, streams: Tensor, memory: Tensor, numerics: Numerics) -> Tensor:
        """``streams [B,T,m,d]`` and looked-up ``memory [B,T,C,dim]`` → new streams."""
        if numerics.quantize:
            memory = quant.straight_through(memory, quant.fp8_groups)
        kv = self.wkv(memory.to(torch.bfloat16).flatten(2), numerics).float()
        keys, value = kv.split([self.mult * self.hidden, self.hidden], -1)
        keys, query = keys.unflatten(-1, (self.mult, self.hidden)), streams.float()
        rstd = torch.rsqrt(query.square().mean(-1) + self.eps) * torch.rsqrt(keys.square().mean(-1) + self.eps)
        weight = self.q_weight.to(torch.bfloat16).float() * self.k_weight.to(torch.bfloat16).float()
        dot = (query * weight * keys).sum(-1) * rstd * self.hidden**-0.5
        gate = torch.sigmoid(torch.where(dot < 0, -1.0, 1.0) * dot.abs().clamp_min(1e-6).sqrt())
        return (query + gate[..., None] * value[..., None, :]).to(streams.dtype)
