"""The training model computes what the engine computes from the checkpoint that it exports."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

LENGTH = 150
SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "moe_intermediate_size": 32, "q_lora_rank": 32, "o_lora_rank": 32,
    "head_dim": 32, "n_routed_experts": 4, "engram_vocab_size": 200, "sliding_window": 16, "index_topk": 24,
    "candidate_topk_blocks": 8, "candidate_block_size": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A freshly initialised small trunk, its hashes, and the folder it was exported to."""
    from train_tiny import data, export, settings
    from train_tiny.dspark import Drafter
    from train_tiny.model import TinyModel
    from train_tiny.train import Hashes

    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("exported")
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    data.save_tokenizer(data.train_tokenizer([text], 512), work)
    hashes = Hashes(work, **SMALL)
    torch.manual_seed(5)
    trunk = TinyModel(hashes.config).eval()
    with torch.no_grad():
        for name, value in trunk.named_parameters():
            if name.endswith(("norm.weight", "q_weight", "attn_sink", "scale")):
                value.add_(0.3 * torch.randn_like(value))
            if name.endswith("engram.embed.weight"):
                value.mul_(20)
        for block in trunk.layers:
            block.ffn.gate.bias.uniform_(-0.2, 0.2)
    config = settings.hf_config(hashes.config.engram.compressed_vocab_size, **SMALL)
    export.export(trunk, Drafter(hashes.config), config, work, out)
    return trunk, hashes, out


@pytest.fixture(scope="module")
def logits(exported: tuple[Any, Any, Path], golden: ModuleType) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``[T, vocab]`` of the trainer and of the engine for one random sequence."""
    from train_tiny.layers import Numerics

    trunk, hashes, folder = exported
    tokens = torch.randint(6, 512, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    exact = Numerics(precise=True)
    with torch.no_grad():
        ours = trunk.logits(trunk(tokens, hashes.rows(tokens), exact)[0], exact)[0]
    model = golden.load_model(folder)
    sequences = golden.Sequences(model)
    handle = sequences.add("a", tokens[0].tolist())
    _, rows = sequences.step()
    return ours, rows[handle]


def test_trainer_and_engine_agree_on_the_distribution(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    ours, engine = (value.log_softmax(-1) for value in logits)
    divergence = (engine.exp() * (engine - ours)).sum(-1)
    assert float(divergence.mean()) < 1e-4
    assert float(divergence.max()) < 1e-2


def test_nearly_all_rows_agree_to_rounding(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    ours, engine = logits
    error = (ours - engine).abs().amax(-1) / engine.abs().amax(-1)
    assert float((error < 0.01).float().mean()) > 0.9
