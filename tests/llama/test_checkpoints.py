"""What a checkpoint may hold: one file or several, any floating-point type, a tied head or its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import CheckpointError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)


def generated(folder: Path) -> Any:
    """Token ids and log-probabilities of a greedy answer."""
    with LLM(folder, disable_log_stats=True, num_threads=1) as llm:
        (output,) = llm.generate([[5, 100, 300, 7]], GREEDY, use_tqdm=False)
    return output.outputs[0].token_ids, output.outputs[0].logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shards", [1, 3])
def test_types_and_files_change_nothing(
    llama_checkpoints: Any, tmp_path: Path, dtype: torch.dtype, shards: int
) -> None:
    weights = llama_checkpoints.random_weights(llama_checkpoints.LLAMA)
    # Values that float16 holds too.
    weights = {name: value.half().float() for name, value in weights.items()}
    folder = llama_checkpoints.write(tmp_path / "a", llama_checkpoints.LLAMA, weights, dtype, shards)
    model = llama_checkpoints.load(folder).module
    for name, value in weights.items():
        assert torch.equal(model.get_parameter(name.removeprefix("model.")), value.bfloat16()), name


def test_values_that_bf16_lacks_round_to_nearest(llama_checkpoints: Any, tmp_path: Path) -> None:
    weights = {
        name: torch.randn(v.shape) for name, v in llama_checkpoints.random_weights(llama_checkpoints.LLAMA).items()
    }
    folder = llama_checkpoints.write(tmp_path / "a", llama_checkpoints.LLAMA, weights, torch.float32)
    head = llama_checkpoints.load(folder).module.get_parameter("lm_head.weight")
    assert torch.equal(head, weights["lm_head.weight"].bfloat16())


@pytest.mark.parametrize("head", ["absent", "equal", "different"])
@pytest.mark.parametrize("tie", [True, False, None])
def test_tied_heads(
    llama_checkpoints: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, tie: bool | None, head: str
) -> None:
    config = {name: value for name, value in llama_checkpoints.LLAMA.items() if name != "tie_word_embeddings"}
    weights = llama_checkpoints.random_weights(config | {"tie_word_embeddings": False})
    different = weights.pop("lm_head.weight")
    embedding = weights["model.embed_tokens.weight"]
    tied = llama_checkpoints.write(tmp_path / "tied", {**config, "tie_word_embeddings": True}, weights)
    if head != "absent":
        weights["lm_head.weight"] = embedding if head == "equal" else different
    if tie is not None:
        config["tie_word_embeddings"] = tie
    folder = llama_checkpoints.write(tmp_path / "asked", config, weights)
    if not tie and head == "absent":
        with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
            generated(folder)
        return
    with caplog.at_level(logging.WARNING):
        answer = generated(folder)
    warned = "lm_head.weight is tied but differs from embed_tokens.weight" in caplog.text
    assert warned == bool(tie and head == "different")
    assert (answer == generated(tied)) == bool(tie or head == "equal")


def test_old_checkpoints_carry_their_frequencies(llama_checkpoints: Any, tmp_path: Path) -> None:
    weights = llama_checkpoints.random_weights(llama_checkpoints.LLAMA)
    plain = llama_checkpoints.write(tmp_path / "plain", llama_checkpoints.LLAMA, weights)
    old = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.rand(12) for i in range(3)}
    assert generated(llama_checkpoints.write(tmp_path / "old", llama_checkpoints.LLAMA, weights | old)) == generated(
        plain
    )


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "missing: layers.1.mlp.up_proj.weight"),
        (lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}), "unexpected: .*q_proj.bias"),
        (lambda w: w.update({"model.norm.weight": torch.ones(32)}), "wrong shape: norm.weight"),
        (lambda w: w.update({"model.layers.3.mlp.up_proj.weight": torch.ones(96, 64)}), "unexpected: layers.3"),
    ],
)
def test_what_does_not_fit_is_named(llama_checkpoints: Any, tmp_path: Path, edit: Any, words: str) -> None:
    weights = llama_checkpoints.random_weights(llama_checkpoints.LLAMA)
    edit(weights)
    with pytest.raises(CheckpointError, match=words):
        generated(llama_checkpoints.write(tmp_path / "a", llama_checkpoints.LLAMA, weights))


def test_integers_are_no_weights(llama_checkpoints: Any, tmp_path: Path) -> None:
    weights = llama_checkpoints.random_weights(llama_checkpoints.LLAMA)
    folder = llama_checkpoints.write(tmp_path / "a", llama_checkpoints.LLAMA, weights, torch.int8)
    with pytest.raises(CheckpointError, match="is I8, expected BF16 or F16 or F32"):
        generated(folder)
