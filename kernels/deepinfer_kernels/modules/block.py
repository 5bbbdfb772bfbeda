"""A block: attention and experts, each within its hyper-connection."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from torch import Tensor, nn

from deepinfer_kernels.modules.hyper_connection import HyperConnection
from deepinfer_kernels.modules.parameters import Norm
from deepinfer_kernels.modules.settings import BlockSettings, Run

R_contra = TypeVar("R_contra", bound=Run, contravariant=True)
R = TypeVar("R", bound=Run)


class Sublayer(Protocol[R_contra]):
    """What stands within a hyper-connection."""

    def run(self, step: R_contra, x: Tensor) -> Tensor:
        """``x [N,d]`` bf16, normed → ``[N,d]`` bf16."""


class Block(nn.Module, Generic[R]):
    """Runs its sublayers, which need a ``step`` of type R.

    name: prefix under which intermediate values are observed.
    """

    def __init__(self, name: str, settings: BlockSettings, attn: Sublayer[R], ffn: Sublayer[R]) -> None:
        super().__init__()
        self._name, self._eps = name, settings.rms_norm_eps
        self.attn_norm = Norm(settings.hidden_size)
        self.attn = attn
        self.ffn_norm = Norm(settings.hidden_size)
        self.ffn = ffn
        self._attn_hc = HyperConnection(self, "hc_attn", settings)
        self._ffn_hc = HyperConnection(self, "hc_ffn", settings)

    def run(self, step: R, streams: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
        """``streams [N,m,d]`` bf16 and the mix handed on ``[N,m]`` f32 → both, after this block."""

        def attention(x: Tensor) -> Tensor:
            return self._sublayer(step, "attn", self.attn_norm, self.attn, x)

        def experts(x: Tensor) -> Tensor:
            return self._sublayer(step, "ffn", self.ffn_norm, self.ffn, x)

        streams, pre = self._attn_hc.around(attention, step.kernels, streams, pre)
        streams, pre = self._ffn_hc.around(experts, step.kernels, streams, pre)
        step.observe(f"{self._name}.hc_out", streams)
        step.observe(f"{self._name}.pre_mix_out", pre)
        return streams, pre

    def _sublayer(self, step: R, part: str, norm: Norm, sublayer: Sublayer[R], x: Tensor) -> Tensor:
        normed = step.kernels.rms_norm(x, norm.weight, self._eps)
        step.observe(f"{self._name}.{part}_in", normed)
        out = sublayer.run(step, normed)
        step.observe(f"{self._name}.{part}_out", out)
        return out
