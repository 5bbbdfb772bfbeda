"""Logits and greedy tokens are those of transformers' implementation, computed in float32 from the same weights.

The engine's activations are bf16, so its logits differ. They may be off by :data:`RMS` of the logits' spread
and must not be further off than transformers itself is when it computes in bf16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core import LLM, SamplingParams

#: Root mean square of the logits' errors over their standard deviation; about 0.012 for these models.
RMS = 0.025
#: A top logit ahead of the next by this part of the spread is the engine's top logit too.
DECIDED = 0.25

#: A checkpoint whose greedy tokens are all clear of a tie.
GREEDY_SEED = 3

YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one KV head": ("llama", {"num_key_value_heads": 1}),
    "a KV head each": ("llama", {"num_key_value_heads": 4}),
    "head_dim of hidden_size / heads": ("llama", {"head_dim": 16}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama3": ("llama", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}),
    "yarn": ("llama", {"rope_scaling": {"rope_type": "yarn", **YARN}, "max_position_embeddings": 128}),
    "yarn with mscale": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e3, **YARN, "mscale": 0.7, "mscale_all_dim": 0.3},
         "max_position_embeddings": 128, "rope_theta": 5e3},
    ),
    "mistral": ("mistral", {"rope_theta": 1e6}),
    "mistral with a window": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows in later layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 20}),
}  # fmt: skip


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0].float()
    return logits


def random_tokens(count: int, seed: int = 1) -> list[int]:
    # Below 2 are the special ones.
    drawn: list[int] = torch.randint(2, 512, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def engine_logits(golden: Any, model: Any, tokens: list[int], chunk: int = 4096) -> torch.Tensor:
    runner = golden.Sequences(model, chunk=chunk)
    handle = runner.add("tokens", tokens, max_tokens=1)
    parts = []
    while runner.scheduler.has_unfinished():
        parts.append(runner.step()[1][handle])
    return torch.cat(parts)


def rms(error: torch.Tensor) -> float:
    return float(error.square().mean().sqrt())


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits(golden: Any, llama_checkpoints: Any, checkpoints: Any, variant: str) -> None:
    family, changes = VARIANTS[variant]
    folder = checkpoints.make(family, **changes)
    tokens = random_tokens(100)
    expected = reference_logits(transformers_model(folder), tokens)
    in_bf16 = reference_logits(transformers_model(folder, torch.bfloat16), tokens)
    logits = engine_logits(golden, llama_checkpoints.load(folder), tokens)
    spread = float(expected.std())
    assert rms(logits - expected) <= RMS * spread
    assert rms(logits - expected) <= rms(in_bf16 - expected)
    top = expected.topk(2).values
    decided = top[:, 0] - top[:, 1] > DECIDED * spread
    assert int(decided.sum()) > 25, "many positions tell something"
    assert torch.equal(logits.argmax(-1)[decided], expected.argmax(-1)[decided])


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_the_torch_kernels_agree_with_the_native_ones(
    golden: Any, llama_checkpoints: Any, checkpoints: Any, family: str
) -> None:
    folder = checkpoints.make(family, num_hidden_layers=2)
    native, plain = (
        engine_logits(golden, llama_checkpoints.load(folder, kind), random_tokens(40)) for kind in ("cpu", "reference")
    )
    assert rms(native - plain) <= RMS * float(plain.std())


@pytest.mark.parametrize("changes", [v[1] for k, v in VARIANTS.items() if k in ("linear", "llama3", "yarn")])
def test_a_scaling_changes_what_is_computed(
    golden: Any, llama_checkpoints: Any, checkpoints: Any, changes: dict[str, Any]
) -> None:
    """Else the comparisons above would also pass with the scaling left out."""
    tokens = random_tokens(100)
    scaled, plain = (
        engine_logits(golden, llama_checkpoints.load(checkpoints.make(name=name, **part)), tokens)
        for name, part in (("scaled", changes), ("plain", {}))
    )
    assert rms(scaled[64:] - plain[64:]) > 5 * RMS * float(plain.std())


@pytest.mark.parametrize(("family", "window"), [("mistral", 24), ("qwen2", 20)])
def test_a_window_changes_what_lies_behind_it_only(
    golden: Any, llama_checkpoints: Any, checkpoints: Any, family: str, window: int
) -> None:
    tokens = random_tokens(80)
    on = {"sliding_window": window, **({"use_sliding_window": True} if family == "qwen2" else {})}
    windowed, full = (
        engine_logits(golden, llama_checkpoints.load(checkpoints.make(family, name=name, **part)), tokens)
        for name, part in (("windowed", on), ("full", {"sliding_window": None}))
    )
    assert torch.equal(windowed[:window], full[:window])
    assert rms(windowed[window:] - full[window:]) > 2 * RMS * float(full.std())


def test_greedy_generation(checkpoints: Any) -> None:
    """Through :class:`LLM`, from a sharded checkpoint, against generation in float32."""
    folder = checkpoints.make(seed=GREEDY_SEED)
    prompts = [random_tokens(n, seed=n) for n in (1, 5, 40)]
    model = transformers_model(folder)
    with LLM(folder, disable_log_stats=True, num_threads=1) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        generated = list(output.outputs[0].token_ids)
        # Each token is the most likely one after those before it: then all of them are the greedy ones.
        logits = reference_logits(model, prompt + generated)[len(prompt) - 1 : -1]
        assert generated == logits.argmax(-1).tolist()
        assert len(set(generated)) > 8, "not one token over and over"


def test_the_saved_config_of_transformers_is_read(checkpoints: Any, golden: Any, llama_checkpoints: Any) -> None:
    """Its own spelling of everything, and its sharded files."""
    folder = checkpoints.make(rope_scaling={"rope_type": "llama3", **LLAMA3})
    model = transformers_model(folder, torch.bfloat16)
    saved = folder.parent / "saved"
    model.save_pretrained(saved, max_shard_size="200KB")
    assert (saved / "model.safetensors.index.json").is_file()
    assert "rope_parameters" in json.loads((saved / "config.json").read_text())
    tokens = random_tokens(100)
    logits = [engine_logits(golden, llama_checkpoints.load(path), tokens) for path in (folder, saved)]
    assert torch.equal(logits[0], logits[1])
