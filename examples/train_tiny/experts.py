"""Mixture of experts: rows sorted by expert, one product per expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import quant
from .layers import Dense, Numerics


def _padded(rows: Tensor) -> Tensor:
    """Zero rows up to a round number: every new shape costs the matrix library a kernel generation."""
    return functional.pad(rows, (0, 0, 0, -rows.shape[0] % 256))


@torch.library.custom_op("train_tiny::grouped_product", mutates_args=())
def grouped_product(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """``x [R,K]`` sorted by expert, ``counts [E]`` rows each, ``weight [E,M,K]`` → ``[R,M]``."""
    parts = zip(x.split(counts.tolist()), weight, strict=True)
    return torch.cat([(_padded(rows) @ matrix.T)[: rows.shape[0]] for rows, matrix in parts])


@grouped_product.register_fake
def _(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.custom_op("train_tiny::grouped_outer", mutates_args=())
def grouped_outer(grad: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    """Per expert ``gradᵀ x``: ``grad [R,M]``, ``x [R,K]`` → ``[E,M,K]``."""
    sizes = counts.tolist()
    parts = zip(grad.split(sizes), x.split(sizes), strict=True)
    return torch.stack([_padded(rows).T @ _padded(inputs) for rows, inputs in parts])


@grouped_outer.register_fake
def _(grad: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty(counts.shape[0], grad.shape[1], x.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, counts = ctx.saved_tensors
    grad = grad.contiguous()
    return grouped_product(grad, weight.transpose(1, 2), counts), grouped_outer(grad, x, counts), None


grouped_product.register_autograd(_grouped_gradient, setup_context=_keep)


class _Spread(torch.autograd.Function):
    """``x [N,d]`` → ``[N k, d]``, sorted by expert."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        return grad[place].unflatten(0, (-1, ctx.k)).sum(1), None, None, None


class _Permute(torch.autograd.Function):
    """Rows of ``x`` in another order; ``inverse`` undoes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad[inverse], None, None


class Expert(nn.Module):
    """Clamped SwiGLU: one expert (fp8) or a stack (fp4)."""

    def __init__(self, hidden: int, inner: int, storage: str, experts: int = 0) -> None:
        super().__init__()
        self.w1 = Dense(hidden, inner, storage, experts=experts)
        self.w2 = Dense(inner, hidden, storage, experts=experts, gain=0.2)
        self.w3 = Dense(hidden, inner, storage, experts=experts)


class Gate(nn.Module):
    """The router; ``bias`` is moved by :meth:`MixtureOfExperts.balance`, not by gradients."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden) * hidden**-0.5)
        self.register_buffer("bias", torch.zeros(experts))


class MixtureOfExperts(nn.Module):
    """Top-k of the routed experts plus the shared one."""

    def __init__(self, config: Any, experts: int, k: int) -> None:
        super().__init__()
        self.settings, self.experts_count, self.k = config.moe, experts, k
        inner = config.moe.intermediate_size
        self.gate = Gate(config.hidden_size, experts)
        self.experts = Expert(config.hidden_size, inner, "fp4", experts)
        self.shared_experts = Expert(config.hidden_size, inner, "fp8")

    def forward(self, x: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """``x [B,T,d]`` → the same, and how many rows each expert got ``[E]``."""
        rows = x.flatten(0, 1)
        ids, weights = self._route(rows)
        order = ids.flatten().argsort(stable=True)
        place = order.argsort()
        counts = (ids.flatten()[:, None] == torch.arange(self.experts_count, device=x.device)).sum(0)
        hidden = self._routed(rows, weights, order, place, counts, numerics)
        total = hidden.unflatten(0, (-1, self.k)).float().sum(1) + self._shared(rows, numerics).float()
        return total.to(torch.bfloat16).view_as(x), counts

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional.linear(rows.float(), self.gate.weight.to(torch.bfloat16).float())
        scores = functional.softplus(logits).sqrt()
        ids = (scores.detach() + self.gate.bias).topk(self.k).indices
        weights = scores.gather(-1, ids)
        if self.settings.normalize and self.k > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * self.settings.route_scale

    def _routed(
        self, rows: Tensor, weights: Tensor, order: Tensor, place: Tensor, counts: Tensor, numerics: Numerics
    ) -> Tensor:
        """Outputs ``[N k, d]`` in row order."""
        if numerics.quantize:
            rows = quant.straight_through(rows, quant.fp8_groups)
        spread = _Spread.apply(rows, order, place, self.k)
        share = _Permute.apply(weights.flatten(), order, place)[:, None]

        def product(inputs: Tensor, part: Dense) -> Tensor:
            weight = part.rounded(numerics).to(torch.bfloat16)
            if numerics.precise:
                return grouped_product(inputs.float(), weight.float(), counts).to(torch.bfloat16)
            return grouped_product(inputs, weight, counts)

        hidden = self._swiglu(product(spread, self.experts.w1), product(spread, self.experts.w3), share)
        if numerics.quantize:
            hidden = quant.straight_through(hidden, quant.fp8_groups)
        return _Permute.apply(product(hidden, self.experts.w2), place, order)

    def _shared(self, rows: Tensor, numerics: Numerics) -> Tensor:
        part = self.shared_experts
        return part.w2(self._swiglu(part.w1(rows, numerics), part.w3(rows, numerics)), numerics)

    def _swiglu(self, a: Tensor, b: Tensor, share: Tensor | float = 1.0) -> Tensor:
        limit = self.settings.swiglu_limit
        return (share * functional.silu(a.float().clamp_max(limit)) * b.float().clamp(-limit, limit)).to(torch.bfloat16)

    @torch.no_grad()
    def balance(self, counts: Tensor, step: float) -> None:
        """Move the selection bias by ``step`` towards an even load (arXiv:2408.15664)."""
        self.gate.bias += step * torch.sign(counts.float().mean() - counts.float())
