"""Muon for matrices (https://kellerjordan.github.io/posts/muon) and Adam for everything else, one state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: Names of matrices that are lookups or tiny projections: Adam suits these better.
_NOT_MUON = ("embed", "head", "hc_", "gate.", "weights_proj", "q_weight", "k_weight", "confidence")
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@torch.no_grad()
def orthogonalize(matrices: Tensor, rounds: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of ``[n, M, K]`` by Newton-Schulz, in bf16."""
    a, b, c = _COEFFICIENTS
    x = matrices.to(torch.bfloat16)
    wide = x.shape[-2] > x.shape[-1]
    x = x.mT if wide else x
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if wide else x


class Optimizer:
    """Steps a model's parameters; rates are the peak rates of each kind.

    matrix: Muon's step, relative to a matrix of unit gain. table: n-gram tables and embeddings. other: the rest.
    """

    def __init__(self, model: nn.Module, *, matrix: float, table: float, other: float, momentum: float = 0.95) -> None:
        self.rates = {"matrix": matrix, "table": table, "other": other}
        self.momentum = momentum
        self.steps = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._state = {name: self._fresh(name, p) for name, p in self._parameters.items()}
        self._stacks: dict[tuple[int, ...], list[str]] = {}
        for name, value in self._parameters.items():
            if self._kind(name, value) == "matrix":
                self._stacks.setdefault(tuple(value.shape[-2:]), []).append(name)

    @staticmethod
    def _kind(name: str, value: Tensor) -> str:
        if "embed" in name:
            return "table"
        return "matrix" if value.ndim >= 2 and not any(part in name for part in _NOT_MUON) else "other"

    def _fresh(self, name: str, value: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(value) for _ in range(1 if self._kind(name, value) == "matrix" else 2))

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"steps": self.steps, "state": self._state}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.steps = saved["steps"]
        for name, tensors in saved["state"].items():
            for mine, theirs in zip(self._state[name], tensors, strict=True):
                mine.copy_(theirs)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One step at ``scale`` times the peak rates; clears the gradients."""
        self.steps += 1
        for names in self._stacks.values():
            self._muon([name for name in names if self._parameters[name].grad is not None], scale)
        for name, value in self._parameters.items():
            kind = self._kind(name, value)
            if kind != "matrix" and value.grad is not None:
                self._adam(name, value, self.rates[kind] * scale)
            value.grad = None

    def _muon(self, names: list[str], scale: float) -> None:
        if not names:
            return
        updates = []
        for name in names:
            grad, (buffer,) = self._parameters[name].grad, self._state[name]
            buffer.lerp_(grad, 1 - self.momentum)
            updates.append(grad.lerp(buffer, self.momentum).reshape(-1, *grad.shape[-2:]))
        rows, cols = updates[0].shape[-2:]
        step = self.rates["matrix"] * scale * max(1.0, rows / cols) ** 0.5
        done = 0
        moved = orthogonalize(torch.cat(updates)).float()
        for name, update in zip(names, updates, strict=True):
            value = self._parameters[name]
            value.sub_(moved[done : done + len(update)].view_as(value), alpha=step)
            done += len(update)

    def _adam(self, name: str, value: Tensor, rate: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        first, second = self._state[name]
        grad = value.grad
        assert grad is not None, "the caller skips parameters without gradients"
        first.lerp_(grad, 1 - betas[0])
        second.lerp_(grad.square(), 1 - betas[1])
        correction = (1 - betas[1] ** self.steps) ** 0.5 / (1 - betas[0] ** self.steps)
        value.addcdiv_(first, second.sqrt().add_(1e-10), value=-rate * correction)
