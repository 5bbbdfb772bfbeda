"""What turns the last stage's hidden states into drafts, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deepinfer_kernels.modules import Linear


class MarkovHead(nn.Module):
    """A low-rank table of which token follows which; corrects logits that were computed side by side."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.embed = Linear(rank, vocab)
        self.head = Linear(rank, vocab)

    def embedding(self, token_ids: Tensor) -> Tensor:
        """``[S]`` int64 → ``[S, rank]`` bf16."""
        return self.embed.weight[token_ids]

    def bias(self, kernels: Any, embedding: Tensor) -> Tensor:
        """``embedding [S, rank]`` bf16 of the tokens before → ``[S, vocab]`` f32, to be added to logits."""
        return kernels.linear(embedding, self.head.kernel_weight(), torch.float32)  # type: ignore[no-any-return]


class ConfidenceHead(nn.Module):
    """How likely the model is to accept a draft."""

    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.proj = Linear(hidden + rank, 1)

    def log_odds(self, kernels: Any, hidden: Tensor, embedding: Tensor) -> Tensor:
        """``hidden [S,d]`` before the last norm, ``embedding [S, rank]`` of the tokens before, bf16 → ``[S]`` f32."""
        both = torch.cat([hidden, embedding], -1)
        return kernels.linear(both, self.proj.kernel_weight(), torch.float32)[:, 0]  # type: ignore[no-any-return]
