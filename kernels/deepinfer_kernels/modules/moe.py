"""Feed-forward part of a block: routed experts and one shared expert."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepinfer_kernels.modules.parameters import Linear, dense_storage, expert_storage, parameter
from deepinfer_kernels.modules.settings import BlockSettings, Run


class Gate(nn.Module):
    """The router. ``bias`` only selects; ``bias_vl`` takes its place on image rows of multimodal checkpoints."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = parameter("bf16", experts, hidden)
        self.bias = parameter("f32", experts)


class Experts(nn.Module):
    """SwiGLU weights: one expert, or a stack of them."""

    def __init__(self, hidden: int, inner: int, storage: str, experts: int | None = None) -> None:
        super().__init__()
        self.w1 = Linear(hidden, inner, storage, experts)
        self.w2 = Linear(inner, hidden, storage, experts)
        self.w3 = Linear(hidden, inner, storage, experts)


class MixtureOfExperts(nn.Module):
    """Top-k of the routed experts plus the shared one, summed in f32.

    name: prefix under which intermediate values are observed.
    """

    def __init__(self, settings: BlockSettings, name: str) -> None:
        super().__init__()
        moe, hidden = settings.moe, settings.hidden_size
        self._settings, self._name = moe, name
        self.gate = Gate(hidden, moe.num_routed_experts)
        self.experts = Experts(hidden, moe.intermediate_size, expert_storage(settings), experts=moe.num_routed_experts)
        self.shared_experts = Experts(hidden, moe.intermediate_size, dense_storage(settings))

    def run(self, step: Run, x: Tensor) -> Tensor:
        """``x [N,d]`` bf16 → bf16 ``[N,d]``."""
        ops, settings = step.kernels, self._settings
        ids, weights = ops.route_experts(
            x,
            self.gate.weight,
            self.gate.bias,
            settings.num_experts_per_token,
            settings.route_scale,
            settings.normalize,
        )
        step.observe(f"{self._name}.moe_indices", ids)
        step.observe(f"{self._name}.moe_weights", weights)
        w1, w2, w3 = self.experts.w1, self.experts.w2, self.experts.w3
        routed = ops.moe_experts(
            x,
            ids,
            weights,
            w1.kernel_weight(),
            w2.kernel_weight(),
            w3.kernel_weight(),
            settings.swiglu_limit,
            w1.quantized,
        )
        total: Tensor = routed + self._shared(step, x).float()
        return total.to(torch.bfloat16)

    def _shared(self, step: Run, x: Tensor) -> Tensor:
        shared, ops = self.shared_experts, step.kernels
        hidden = ops.swiglu(shared.w1.apply_to(ops, x), shared.w3.apply_to(ops, x), self._settings.swiglu_limit)
        return shared.w2.apply_to(ops, hidden)
