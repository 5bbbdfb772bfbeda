"""The host never waits for the device while a model runs: whole steps under a guard that raises where it would, and on
a device that has no values to read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.interfaces.model import InputBatch, LayerFeatures, Model, ModelContext
from deepinfer_core.interfaces.speculator import DraftBatch, Drafter
from deepinfer_core.model_loader import CheckpointIndex, load_hf_config, load_weights
from deepinfer_core.testing.sequences import Chunk, Sequences
from deepinfer_core.testing.synchronisation import SynchronisationGuard
from deepinfer_core.tokenizer import load_tokenizer
from deepinfer_kernels import ops
from deepinfer_plugin_deepseek.architecture import DeepseekV41
from deepinfer_plugin_dflash.speculator import DFlash
from deepinfer_plugin_llama.architecture import Llama

DATA = Path(__file__).parents[1] / "data"
VOCAB = 512
CPU, META = torch.device("cpu"), torch.device("meta")
PROMPTS = [[3 * i % 500 for i in range(n)] for n in (37, 140, 6)]
#: A prefill whose chunks end within a group; one beside a decoding sequence; decoding sequences alone.
STEPS: list[list[Chunk]] = [
    [(0, 0, PROMPTS[0][:-2]), (1, 0, PROMPTS[1][:31])],
    [(0, 35, PROMPTS[0][35:36]), (1, 31, PROMPTS[1][31:139]), (2, 0, PROMPTS[2][:-1])],
    [(i, len(prompt) - 1, prompt[-1:]) for i, prompt in enumerate(PROMPTS)],
]


@pytest.mark.parametrize("read", [lambda t: t.tolist(), lambda t: t.item(), lambda t: t.nonzero(), lambda t: t[t > 0]])
def test_the_meta_device_has_no_values(read: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.zeros(1, device=META))


class Setup:
    """A checkpoint's model, and its drafter if it has one, on kernels and a device."""

    def __init__(self, folder: Path, kernels: Any, device: torch.device) -> None:
        hf_config = load_hf_config(folder)
        architecture = DeepseekV41() if "Deepseek" in hf_config.architecture else Llama()
        config = architecture.translate_config(hf_config.config)
        context = ModelContext(kernels=kernels, rollback=4, tokenizer=load_tokenizer(folder), device=device)
        self.device = device
        self.model: Model = architecture.build(config, context)
        self.drafter: Drafter | None = None
        if DFlash().num_drafts(config):
            self.drafter = DFlash().build(config, self.model, context)
        if device != META:
            for part in filter(None, (self.model, self.drafter)):
                mine = {spec.name for spec in part.weight_specs()}
                load_weights(
                    part.module, CheckpointIndex.open(folder), part.weight_specs(), use_tqdm=False,
                    ignore=lambda name, mine=mine: None if name in mine else "somebody else's",
                )  # fmt: skip

    def run(self, guard: Any) -> list[Tensor]:
        """All there is to compare of :data:`STEPS`, computed in the context ``guard``."""
        places = Sequences(self.model, len(PROMPTS), 160, self.device, self.drafter)
        found: list[Tensor] = []
        for chunks in STEPS:
            batch = places.batch(chunks)
            features = None if self.drafter is None else self.drafter.new_features(len(batch))
            last = torch.tensor([len(tokens) for _, _, tokens in chunks]).cumsum(0).sub(1).to(self.device)
            with guard:
                found += self._step(batch, places.caches, features, last)
        return [*found, *places.caches.values()]

    def _step(self, batch: InputBatch, caches: Any, features: LayerFeatures | None, last: Tensor) -> list[Tensor]:
        logits = self.model.logits(self.model.forward(batch, caches, features=features))
        if self.drafter is None:
            return [logits]
        self.drafter.observe(batch, features, caches)
        drafts = DraftBatch(logits[last].argmax(-1), batch.positions[last] + 1, batch.slots[last])
        proposal = self.drafter.propose(drafts, caches, lambda depth, logits: logits.argmax(-1))
        assert proposal.logits is not None, "it picks its drafts from logits"
        return [logits, proposal.token_ids, proposal.logits, proposal.confidences]


@pytest.fixture(params=["v41-tiny-bf16", "v41-tiny-fp8fp4", "llama", "mistral"])
def folder(request: pytest.FixtureRequest, llama_checkpoints: Any, tmp_path: Path) -> Path:
    if (DATA / request.param).exists():
        return DATA / request.param
    window = {"sliding_window": 20} if request.param == "mistral" else {}
    checkpoint: Path = llama_checkpoints.Checkpoints(tmp_path).make(request.param, **window)
    return checkpoint


def test_native_kernels_are_called_without_waiting(folder: Path) -> None:
    """And what comes of it is what comes without the guard, bit for bit."""
    guard = SynchronisationGuard()
    guarded = Setup(folder, guard.kernels(ops.cpu), CPU).run(guard)
    free = Setup(folder, ops.cpu, CPU).run(nullcontext())
    assert all(torch.equal(one, other) for one, other in zip(guarded, free, strict=True))


def test_the_torch_kernels_and_the_checks_of_all_ops_wait_for_nothing(folder: Path) -> None:
    guarded = Setup(folder, ops.reference, CPU).run(SynchronisationGuard())
    free = Setup(folder, ops.reference, CPU).run(nullcontext())
    assert all(torch.equal(one, other) for one, other in zip(guarded, free, strict=True))


def test_steps_run_on_a_device_without_values(folder: Path) -> None:
    found = Setup(folder, ops.reference, META).run(SynchronisationGuard())
    assert all(value.is_meta for value in found)
    assert found[0].shape == (sum(len(tokens) for _, _, tokens in STEPS[0]), VOCAB)
