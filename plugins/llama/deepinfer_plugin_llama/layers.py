"""The parts of a layer, under the names that published checkpoints give them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deepinfer_core.interfaces.cache import PAGE_TOKENS, StateBuffer
from deepinfer_kernels.modules import Linear, Norm, parameter

from .step import Step

if TYPE_CHECKING:
    from .config import LlamaConfig
    from .layer_plan import LayerSpec


class Projection(Linear):
    """A bf16 weight ``[outputs, inputs]`` with or without a bias."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs)
        self.bias = parameter("bf16", outputs) if bias else None

    def apply_to(self, kernels: Any, x: Tensor) -> Tensor:
        """``x [N,K]`` bf16 → bf16 ``[N,M]``, rounded once."""
        if self.bias is None:
            return super().apply_to(kernels, x)
        out: Tensor = kernels.linear(x, self.kernel_weight(), torch.float32)
        return (out + self.bias).to(torch.bfloat16)


class Attention(nn.Module):
    """Grouped-query attention over pages of keys and values."""

    def __init__(self, config: LlamaConfig, spec: LayerSpec) -> None:
        super().__init__()
        self._config, self._spec = config, spec
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Projection(config.hidden_size, width, config.query_bias)
        self.k_proj = Projection(config.hidden_size, kv_width, config.query_bias)
        self.v_proj = Projection(config.hidden_size, kv_width, config.query_bias)
        self.o_proj = Projection(width, config.hidden_size, config.output_bias)

    def page_buffers(self) -> tuple[StateBuffer, StateBuffer]:
        """Keys and values ``[KV heads, tokens, head_dim]`` bf16 of one page; a head's lie side by side."""
        shape = (self._config.num_kv_heads, PAGE_TOKENS, self._config.head_dim)
        names = self._buffer("keys"), self._buffer("values")
        return StateBuffer(names[0], shape, "bfloat16"), StateBuffer(names[1], shape, "bfloat16")

    def run(self, step: Step, x: Tensor) -> Tensor:
        """``x [N,d]`` bf16 → bf16 ``[N,d]``. All keys and values of the step are stored before any row reads."""
        ops, config, batch = step.kernels, self._config, step.batch
        q, k, v = (
            projection.apply_to(ops, x).view(len(x), -1, config.head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        step.store(self._buffer("keys"), ops.apply_rope_half_split(k, *step.rope))
        step.store(self._buffer("values"), v)
        out: Tensor = ops.paged_attention(
            ops.apply_rope_half_split(q, *step.rope),
            step.caches[self._buffer("keys")],
            step.caches[self._buffer("values")],
            config.softmax_scale,
            batch.block_tables,
            batch.seq_of_row,
            step.positions,
            self._spec.window_size,
        )
        return self.o_proj.apply_to(ops, out.flatten(1))

    def _buffer(self, part: str) -> str:
        return f"layers.{self._spec.index}.{part}"


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Projection(hidden, inner, config.mlp_bias)
        self.up_proj = Projection(hidden, inner, config.mlp_bias)
        self.down_proj = Projection(inner, hidden, config.mlp_bias)

    def run(self, step: Step, x: Tensor) -> Tensor:
        """``x [N,d]`` bf16 → bf16 ``[N,d]``."""
        ops = step.kernels
        inner = ops.swiglu(self.gate_proj.apply_to(ops, x), self.up_proj.apply_to(ops, x), math.inf)
        return self.down_proj.apply_to(ops, inner)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: LlamaConfig, spec: LayerSpec) -> None:
        super().__init__()
        self._name, self._eps = f"layers.{spec.index}", config.rms_norm_eps
        self.input_layernorm = Norm(config.hidden_size)
        self.self_attn = Attention(config, spec)
        self.post_attention_layernorm = Norm(config.hidden_size)
        self.mlp = FeedForward(config)

    def run(self, step: Step, hidden: Tensor) -> Tensor:
        """``hidden [N,d]`` bf16 → bf16 ``[N,d]``."""
        ops = step.kernels
        out = self.self_attn.run(step, ops.rms_norm(hidden, self.input_layernorm.weight, self._eps))
        step.observe(f"{self._name}.attn_out", out)
        hidden = hidden + out
        out = self.mlp.run(step, ops.rms_norm(hidden, self.post_attention_layernorm.weight, self._eps))
        step.observe(f"{self._name}.mlp_out", out)
        return hidden + out
