"""Runs token sequences through a model in chosen chunks, as an engine would, without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.interfaces.cache import PAGE_TOKENS, CacheLayout
from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, Model
from deepinfer_core.interfaces.speculator import Drafter
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.input_metadata import make_input_batch

#: ``(sequence, first position, tokens)``: a chunk to be computed.
Chunk = tuple[int, int, Sequence[int]]


class Sequences:
    """Places for sequences: sequence i has slot i + 1 and pages of its own, handed out in a scattered order.

    With a drafter its buffers and its metadata are there too.
    """

    def __init__(
        self, model: Model, count: int, max_tokens: int, device: torch.device, drafter: Drafter | None = None
    ) -> None:
        self.model = model
        self._builders = [part.build_metadata for part in (model, drafter) if part is not None]
        self._device = device
        self._pages = -(-max_tokens // PAGE_TOKENS)
        layout = model.cache_layout()
        if drafter is not None:
            extra = drafter.cache_layout()
            layout = CacheLayout(layout.pages + extra.pages, layout.slots + extra.slots)
        self.caches: Mapping[str, Tensor] = CacheEngine(layout, count * self._pages + 1, count + 1, device).tensors
        order = torch.randperm(count * self._pages, generator=torch.Generator().manual_seed(0)) + 1
        self._tables = order.view(count, self._pages).tolist()
        self._tokens: list[list[int]] = [[] for _ in range(count)]

    def batch(self, chunks: Sequence[Chunk]) -> InputBatch:
        """The rows of one step; what comes before a chunk must have been computed."""
        lookback = self.model.token_lookback
        line: list[tuple[int, ...]] = []
        contexts: list[list[int]] = []
        for place, (sequence, start, tokens) in enumerate(chunks):
            known = self._tokens[sequence][:start] + list(tokens)
            self._tokens[sequence] = known
            last = start + len(tokens) - 1
            for position in range(start, last + 1):
                contexts.append([known[p] if p >= 0 else -1 for p in range(position, position - 1 - lookback, -1)])
                line.append((position, place, sequence + 1, start, last))
        positions, *columns = np.array(line, np.int64).T
        seq_of_row, slots, starts, ends = (column.astype(np.int32) for column in columns)
        tables = np.array([self._tables[sequence] for sequence, _, _ in chunks], np.int32)
        rows, ids = BatchRows(positions, seq_of_row, slots, starts, ends, tables), np.array(contexts)
        return make_input_batch(rows, ids[:, 0], ids, self._device, *self._builders)

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
