"""Golden cases: checkpoints with what the published reference computes from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from safetensors.torch import load_file

from deepinfer_core import _C
from deepinfer_core.interfaces.model import ModelContext
from deepinfer_core.model_loader import CheckpointIndex, load_hf_config, load_weights
from deepinfer_core.tokenizer import load_tokenizer
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.input_metadata import build_input_batch
from deepinfer_kernels import ops
from deepinfer_plugin_deepseek.architecture import DeepseekV41
from deepinfer_plugin_deepseek.model import TextModel

DATA = Path(__file__).parent / "data"
CPU = torch.device("cpu")


@frozen(eq=False)
class GoldenCase:
    """One checkpoint, loaded, and its expected values."""

    name: str
    model: TextModel
    values: dict[str, torch.Tensor]
    prompts: dict[str, Any]


def load_model(folder: Path, family: str = "cpu", rollback: int = 0) -> TextModel:
    """The model of a checkpoint folder, on the kernel family given."""
    hf_config = load_hf_config(folder)
    architecture = DeepseekV41()
    context = ModelContext(kernels=ops.family(family), rollback=rollback, tokenizer=load_tokenizer(folder))
    model = architecture.build(architecture.translate_config(hf_config.config), context)
    load_weights(
        model.module, CheckpointIndex.open(folder), model.weight_specs(), ignore=model.unused_tensor, use_tqdm=False
    )
    return model


def load_case(name: str, family: str = "cpu") -> GoldenCase:
    """A golden case of ``tests/data``."""
    folder = DATA / name
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    return GoldenCase(name, load_model(folder, family), load_file(folder / "golden.safetensors"), prompts)


class Sequences:
    """Runs chosen tokens of several sequences through a model, chunk by chunk, by the real scheduler's plans."""

    def __init__(
        self, model: TextModel, *, num_pages: int = 64, num_seqs: int = 32, chunk: int = 4096, budget: int = 4096
    ) -> None:
        self.model = model
        self.caches = CacheEngine(model.cache_layout(), num_pages, num_seqs + 1, CPU)
        self.scheduler = _C.Scheduler(
            num_pages=num_pages,
            num_slots=num_seqs + 1,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=model.config.max_position_embeddings,
            max_chunk_tokens=min(chunk, budget),
            token_history=model.token_lookback,
        )
        self.seen: dict[str, torch.Tensor] = {}
        """What the tap saw of the last forward."""

    def add(self, name: str, tokens: list[int], max_tokens: int = 1000, num_completions: int = 1) -> int:
        """Queue a sequence, or several samples of it; returns its handle."""
        ids = np.asarray(tokens, np.int32)
        return int(self.scheduler.submit(name, ids, max_tokens=max_tokens, num_completions=num_completions))

    def step(self, following: dict[int, int] | None = None) -> tuple[_C.StepPlan, dict[int, torch.Tensor]]:
        """One step: its plan, and logits ``[rows, vocab]`` of every sequence in it.

        following: the next token by handle; otherwise it is the most likely one.
        """
        self.scheduler.release_deferred()
        plan = self.scheduler.schedule()
        self.seen.clear()
        self.caches.copy(plan)
        hidden = self.model.forward(
            build_input_batch(plan, CPU, self.model.build_metadata),
            self.caches.tensors,
            lambda name, value: self.seen.__setitem__(name, value.clone()),
        )
        logits = self.model.logits(hidden)
        offsets = plan.query_offsets
        rows = {int(h): logits[offsets[i] : offsets[i + 1]] for i, h in enumerate(plan.handles)}
        chosen = [
            (following or {}).get(int(handle), int(rows[int(handle)][-1].argmax()))
            for handle, samples in zip(plan.handles, plan.samples, strict=True)
            if samples
        ]
        self.scheduler.commit(plan, np.asarray(chosen, np.int32))
        return plan, rows
