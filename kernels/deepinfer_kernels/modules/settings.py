"""What modules need to know of a model: structural types, which a config fulfils by having the attributes."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

#: cos and sin, each ``[N, rope_head_dim/2]`` f32.
RopeTable = tuple[Tensor, Tensor]


class AttentionSettings(Protocol):
    """Low-rank multi-query attention: all heads share one key, which is also the value."""

    @property
    def num_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rope_head_dim(self) -> int: ...
    @property
    def q_lora_rank(self) -> int: ...
    @property
    def o_lora_rank(self) -> int: ...
    @property
    def o_groups(self) -> int: ...
    @property
    def group_dim(self) -> int: ...
    @property
    def window_size(self) -> int: ...
    @property
    def softmax_scale(self) -> float: ...


class MoeSettings(Protocol):
    """Routed experts, and a shared one of the same width."""

    @property
    def num_routed_experts(self) -> int: ...
    @property
    def num_experts_per_token(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def route_scale(self) -> float: ...
    @property
    def normalize(self) -> bool: ...
    @property
    def swiglu_limit(self) -> float: ...


class HyperConnectionSettings(Protocol):
    """``mult`` residual streams."""

    @property
    def mult(self) -> int: ...
    @property
    def sinkhorn_iters(self) -> int: ...
    @property
    def eps(self) -> float: ...


class YarnSettings(Protocol):
    """YaRN frequency scaling (arXiv:2309.00071), without its magnitude scale."""

    @property
    def factor(self) -> float: ...
    @property
    def original_max_position(self) -> int: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...


class RopeSettings(Protocol):
    """Rotary embedding of base ``theta``."""

    @property
    def theta(self) -> float: ...
    @property
    def yarn(self) -> YarnSettings | None: ...


class BlockSettings(Protocol):
    """A block of attention and experts. ``quantization`` is None for bf16 checkpoints."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def attention(self) -> AttentionSettings: ...
    @property
    def moe(self) -> MoeSettings: ...
    @property
    def hyper_connection(self) -> HyperConnectionSettings: ...
    @property
    def quantization(self) -> object | None: ...


class Run(Protocol):
    """One forward, as far as every module sees it."""

    @property
    def kernels(self) -> Any:
        """The namespace of ops."""

    def observe(self, name: str, value: Tensor) -> None:
        """Show an intermediate value to whoever debugs; free of cost otherwise."""
