"""Hyper-connections around a sublayer: Hyper-Connections (Zhu et al. 2024, arXiv:2409.19606), with the streams' mixing
made doubly stochastic as in mHC: Manifold-Constrained Hyper-Connections (Xie et al. 2025, arXiv:2512.24880).

DeepSeek-V4.1 shifts them: a sublayer's input is collapsed with the mix that the sublayer before it handed on; its own
coefficients come from the streams at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from deepinfer_kernels.modules.parameters import parameter
from deepinfer_kernels.modules.settings import BlockSettings


class HyperConnection:
    """One sublayer's view of its coefficients, which the block holds under the published names."""

    def __init__(self, block: nn.Module, prefix: str, settings: BlockSettings) -> None:
        mult = settings.hyper_connection.mult
        mixes = mult * (2 + mult)
        self._block, self._prefix, self._settings = block, prefix, settings
        block.register_parameter(f"{prefix}_fn", parameter("f32", mixes, mult * settings.hidden_size))
        block.register_parameter(f"{prefix}_base", parameter("f32", mixes))
        block.register_parameter(f"{prefix}_scale", parameter("f32", 3))

    def around(
        self, sublayer: Callable[[Tensor], Tensor], kernels: Any, streams: Tensor, pre: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run ``sublayer`` ``[N,d] → [N,d]`` on ``streams [N,m,d]``; return the new streams and the next mix."""
        settings = self._settings.hyper_connection
        fn, base, scale = (getattr(self._block, f"{self._prefix}_{part}") for part in ("fn", "base", "scale"))
        collapsed = kernels.hyper_connection_collapse(streams, pre)
        next_pre, post, comb = kernels.hyper_connection_mix(
            streams, fn, base, scale, settings.sinkhorn_iters, settings.eps, self._settings.rms_norm_eps
        )
        out = sublayer(collapsed)
        return kernels.hyper_connection_expand(out, streams, post, comb), next_pre


def first_mix(rows: int, mult: int, device: torch.device) -> Tensor:
    """The mix handed to the first sublayer, ``[N,m]`` f32: stream 0 alone."""
    pre = torch.zeros(rows, mult, dtype=torch.float32, device=device)
    pre[:, 0].fill_(1.0)
    return pre
