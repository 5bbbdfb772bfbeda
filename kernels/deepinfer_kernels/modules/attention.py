"""Latent attention's projections; which keys a query sees is its user's matter."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from deepinfer_kernels.codecs import WINDOW_CODEC
from deepinfer_kernels.modules.parameters import Linear, Norm, dense_storage, parameter
from deepinfer_kernels.modules.settings import BlockSettings, RopeTable


class LatentAttention(nn.Module):
    """All heads share one key per entry, which is also its value; the output is rotated back."""

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        attention, hidden, dense = settings.attention, settings.hidden_size, dense_storage(settings)
        width = attention.num_heads * attention.head_dim
        self._settings, self._eps = attention, settings.rms_norm_eps
        self.wq_a = Linear(hidden, attention.q_lora_rank, dense)
        self.q_norm = Norm(attention.q_lora_rank)
        self.wq_b = Linear(attention.q_lora_rank, width, dense)
        self.wkv = Linear(hidden, attention.head_dim, dense)
        self.kv_norm = Norm(attention.head_dim)
        self.attn_sink = parameter("f32", attention.num_heads)
        self.wo_a = Linear(attention.group_dim, attention.o_groups * attention.o_lora_rank, dense)
        self.wo_b = Linear(attention.o_groups * attention.o_lora_rank, hidden, dense)

    def queries(self, kernels: Any, x: Tensor, rope: RopeTable) -> tuple[Tensor, Tensor]:
        """``x [N,d]`` bf16 → the queries' latent ``[N, q_lora_rank]`` and rotated queries ``[N,H,D]``, bf16."""
        latent = kernels.rms_norm(self.wq_a.apply_to(kernels, x), self.q_norm.weight, self._eps)
        q = self.wq_b.apply_to(kernels, latent).view(len(x), self._settings.num_heads, self._settings.head_dim)
        return latent, kernels.apply_rope(q, *rope, False)

    def window_records(self, kernels: Any, x: Tensor, rope: RopeTable) -> Tensor:
        """``x [N,d]`` bf16 → window keys as the ring holds them, ``[N, record]`` uint8."""
        keys = kernels.rms_norm(self.wkv.apply_to(kernels, x), self.kv_norm.weight, self._eps)
        keys = kernels.apply_rope(keys[:, None, :], *rope, False)[:, 0, :]
        return kernels.pack_kv(keys, WINDOW_CODEC)  # type: ignore[no-any-return]

    def output(self, kernels: Any, attended: Tensor, rope: RopeTable) -> Tensor:
        """``attended [N,H,D]`` bf16 → ``[N,d]`` bf16."""
        settings = self._settings
        out = kernels.apply_rope(attended, *rope, True).view(len(attended), settings.o_groups, settings.group_dim)
        out = kernels.grouped_linear(out, self.wo_a.kernel_weight(), settings.o_groups)
        return self.wo_b.apply_to(kernels, out.flatten(1))
