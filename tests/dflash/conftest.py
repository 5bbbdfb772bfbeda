"""Drafters of golden checkpoints, and a runner that drafts after every step of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core import _C
from deepinfer_core.interfaces.cache import CacheLayout
from deepinfer_core.interfaces.model import BatchRows, InputBatch, LayerFeatures, Model, ModelContext
from deepinfer_core.interfaces.speculator import DraftBatch, Drafter, Proposal
from deepinfer_core.model_loader import CheckpointIndex, load_weights
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.input_metadata import build_input_batch, make_input_batch
from deepinfer_kernels import ops
from deepinfer_plugin_dflash.drafter import BlockDrafter
from deepinfer_plugin_dflash.speculator import DFlash

CPU = torch.device("cpu")
ROLLBACK = 4


def greedy(depth: int, logits: Tensor) -> Tensor:
    """Always the most likely token."""
    return logits.argmax(-1)


def observed_batch(part: Model | Drafter, *chunks: tuple[int, int, int]) -> InputBatch:
    """``(slot, first position, rows)`` of every sequence, with zeros for tokens, as ``part`` needs it."""
    counts = [n for _, _, n in chunks]
    slots, starts = (np.repeat(np.array([c[i] for c in chunks], np.int32), counts) for i in (0, 1))
    rows = BatchRows(
        positions=np.concatenate([np.arange(start, start + n) for _, start, n in chunks]),
        seq_of_row=np.repeat(np.arange(len(chunks), dtype=np.int32), counts),
        slots=slots,
        starts=starts,
        ends=starts + np.repeat(np.array(counts, np.int32), counts) - 1,
        block_tables=np.arange(1, len(chunks) + 1, dtype=np.int32)[:, None],
    )
    tokens = np.zeros(sum(counts), np.int64)
    return make_input_batch(rows, tokens, tokens[:, None], CPU, part.build_metadata)


class Drafting:
    """A model and its drafter on the real scheduler's plans; every sequence is drafted for when it has a new token."""

    def __init__(self, case: Any, drafter: BlockDrafter, *, chunk: int = 4096, num_seqs: int = 8) -> None:
        self.model, self.drafter = case.model, drafter
        mine, its = drafter.cache_layout(), case.model.cache_layout()
        layout = CacheLayout(its.pages + mine.pages, its.slots + mine.slots)
        self.caches = CacheEngine(layout, 64, num_seqs + 1, CPU)
        self.scheduler = _C.Scheduler(
            num_pages=64,
            num_slots=num_seqs + 1,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=4096,
            max_model_len=case.model.config.max_position_embeddings,
            max_chunk_tokens=chunk,
            token_history=case.model.token_lookback,
        )
        self.features: LayerFeatures
        """What the last step's forward left for the drafter."""
        self.seen: dict[str, Tensor] = {}
        """What the drafter showed in the last step."""

    def add(self, tokens: list[int]) -> int:
        """Queue a sequence; returns its handle."""
        return int(self.scheduler.submit(str(len(tokens)), np.asarray(tokens, np.int32), max_tokens=1000))

    def step(
        self, following: Mapping[int, int], forced: Mapping[int, list[int]] | None = None
    ) -> tuple[dict[int, slice], dict[int, Proposal]]:
        """One step: each sequence's rows, and a proposal of those that ``following`` gives their next token.

        forced: by handle, drafts to be picked whatever the logits say (greedy otherwise).
        """
        self.scheduler.release_deferred()
        plan = self.scheduler.schedule()
        builders = self.model.build_metadata, self.drafter.build_metadata
        batch = build_input_batch(plan, CPU, *builders)
        self.features = self.drafter.new_features(len(batch))
        self.model.forward(batch, self.caches.tensors, features=self.features)
        self.seen.clear()
        self.drafter.observe(batch, self.features, self.caches.tensors, self._show)
        offsets = plan.query_offsets.tolist()
        handles = plan.handles.tolist()
        rows = {handle: slice(offsets[i], offsets[i + 1]) for i, handle in enumerate(handles)}
        drafted = [handle for handle, samples in zip(handles, plan.samples, strict=True) if samples]
        newest = [following[handle] for handle in drafted]
        self.scheduler.commit(plan, np.asarray(newest, np.int32))
        return rows, self._propose(batch, rows, drafted, newest, forced) if drafted else {}

    def _propose(
        self,
        batch: InputBatch,
        rows: dict[int, slice],
        drafted: list[int],
        newest: list[int],
        forced: Mapping[int, list[int]] | None,
    ) -> dict[int, Proposal]:
        last = torch.tensor([rows[handle].stop - 1 for handle in drafted])
        drafts = DraftBatch(torch.tensor(newest), batch.positions[last] + 1, batch.slots[last])
        wanted = None if forced is None else torch.tensor([forced[handle] for handle in drafted])

        def pick(depth: int, logits: Tensor) -> Tensor:
            return greedy(depth, logits) if wanted is None else wanted[:, depth]

        out = self.drafter.propose(drafts, self.caches.tensors, pick, self._show)
        return {
            handle: Proposal(out.token_ids[i], out.logits[i], out.confidences[i]) for i, handle in enumerate(drafted)
        }

    def _show(self, name: str, value: Tensor) -> None:
        self.seen[name] = value.clone()


@pytest.fixture(scope="session")
def load_drafter(golden: Any, golden_case: Any) -> Callable[..., BlockDrafter]:
    """``load_drafter(name, family)``: the drafter of a golden checkpoint, loaded once per session."""
    drafters: dict[tuple[str, str], BlockDrafter] = {}

    def load(name: str, family: str = "cpu") -> BlockDrafter:
        if (name, family) not in drafters:
            model = golden_case(name, family).model
            context = ModelContext(kernels=ops.family(family), rollback=ROLLBACK)
            drafter = DFlash().build(model.config, model, context)
            index = CheckpointIndex.open(golden.DATA / name)
            load_weights(drafter.module, index, drafter.weight_specs(), ignore=drafter.unused_tensor, use_tqdm=False)
            drafters[name, family] = drafter
        return drafters[name, family]

    return load


@pytest.fixture(scope="session")
def drafting(golden_case: Any, load_drafter: Callable[..., BlockDrafter]) -> Callable[..., Drafting]:
    """``drafting(name, family, chunk=…)``: a runner with empty caches."""

    def make(name: str, family: str = "cpu", **settings: int) -> Drafting:
        return Drafting(golden_case(name, family), load_drafter(name, family), **settings)

    return make


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., InputBatch]:
    """The function ``observed_batch``."""
    return observed_batch


@pytest.fixture(scope="session")
def pick_greedily() -> Callable[[int, Tensor], Tensor]:
    """The function ``greedy``."""
    return greedy
