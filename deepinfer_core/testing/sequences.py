"""Runs token sequences through a model in chosen chunks, as an engine would, without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deepinfer_core.interfaces.cache import PAGE_TOKENS, CacheLayout
from deepinfer_core.interfaces.model import InputBatch, LayerFeatures, Model
from deepinfer_core.worker.cache_engine import CacheEngine

#: ``(sequence, first position, tokens)``: a chunk to be computed.
Chunk = tuple[int, int, Sequence[int]]


class Sequences:
    """Places for sequences: sequence i has slot i + 1 and pages of its own, handed out in a scattered order."""

    def __init__(
        self, model: Model, count: int, max_tokens: int, device: torch.device, extra: CacheLayout | None = None
    ) -> None:
        self.model = model
        self._device = device
        self._pages = -(-max_tokens // PAGE_TOKENS)
        layout = model.cache_layout()
        if extra is not None:
            layout = CacheLayout(layout.pages + extra.pages, layout.slots + extra.slots)
        self.caches: Mapping[str, Tensor] = CacheEngine(layout, count * self._pages + 1, count + 1, device).tensors
        order = torch.randperm(count * self._pages, generator=torch.Generator().manual_seed(0)) + 1
        self._tables = order.view(count, self._pages).tolist()
        self._tokens: list[list[int]] = [[] for _ in range(count)]

    def batch(self, chunks: Sequence[Chunk]) -> InputBatch:
        """The rows of one step; what comes before a chunk must have been computed."""
        rows, lookback = [], self.model.token_lookback
        for place, (sequence, start, tokens) in enumerate(chunks):
            known = self._tokens[sequence][:start] + list(tokens)
            self._tokens[sequence] = known
            last = start + len(tokens) - 1
            for position in range(start, last + 1):
                context = [known[p] if p >= 0 else -1 for p in range(position, position - 1 - lookback, -1)]
                rows.append((known[position], position, place, sequence + 1, start, last, context))
        token_ids, positions, places, slots, starts, ends, contexts = zip(*rows, strict=True)

        def column(values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(self._device)

        return InputBatch(
            token_ids=column(token_ids, torch.int64),
            positions=column(positions, torch.int64),
            seq_of_row=column(places),
            slots=column(slots),
            starts=column(starts),
            ends=column(ends),
            block_tables=torch.tensor([self._tables[s] for s, _, _ in chunks], dtype=torch.int32).to(self._device),
            context_ids=torch.tensor(contexts, dtype=torch.int64).to(self._device),
        )

    def run(self, chunks: Sequence[Chunk], features: LayerFeatures | None = None) -> list[Tensor]:
        """One step: the logits ``[tokens, vocab]`` of each chunk, on the host."""
        hidden = self.model.forward(self.batch(chunks), self.caches, features=features)
        return list(self.model.logits(hidden).cpu().split([len(tokens) for _, _, tokens in chunks]))

    def run_all(self, prompts: Sequence[Sequence[int]], chunk: int | None = None) -> list[Tensor]:
        """Whole sequences side by side, at most ``chunk`` tokens of each in a step: their logits."""
        size = chunk or max(map(len, prompts))
        parts: list[list[Tensor]] = [[] for _ in prompts]
        for start in range(0, max(map(len, prompts)), size):
            chunks = [(i, start, p[start : start + size]) for i, p in enumerate(prompts) if start < len(p)]
            for (i, _, _), logits in zip(chunks, self.run(chunks), strict=True):
                parts[i].append(logits)
        return [torch.cat(part) for part in parts]
