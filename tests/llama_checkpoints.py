"""Small random checkpoints of Llama-style models in their published format, and the models loaded from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors.torch import save_file

from deepinfer_core.interfaces.model import ModelContext
from deepinfer_core.model_loader import CheckpointIndex, load_hf_config, load_weights
from deepinfer_kernels import ops
from deepinfer_plugin_llama.architecture import Llama
from deepinfer_plugin_llama.model import DenseModel

#: Its vocabulary is the models'.
TOKENIZER = Path(__file__).parent / "data" / "v41-tiny-bf16"
VOCAB = 512

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 24, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL: Mapping[str, Any] = {
    **LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None,
}  # fmt: skip
QWEN2: Mapping[str, Any] = {
    **LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False,
    "sliding_window": 32, "max_window_layers": 1,
}  # fmt: skip
FAMILIES = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2}


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Published tensor names and shapes of a config, head included."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    widths = {"q": config["num_attention_heads"] * dim, "k": config["num_key_value_heads"] * dim}
    widths["v"] = widths["k"]
    bias, is_qwen2 = config.get("attention_bias", False), config["model_type"] == "qwen2"
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        found[f"{name}.input_layernorm.weight"] = found[f"{name}.post_attention_layernorm.weight"] = (hidden,)
        for part, width in widths.items():
            found[f"{name}.self_attn.{part}_proj.weight"] = (width, hidden)
            if bias or is_qwen2:
                found[f"{name}.self_attn.{part}_proj.bias"] = (width,)
        found[f"{name}.self_attn.o_proj.weight"] = (hidden, widths["q"])
        if bias:
            found[f"{name}.self_attn.o_proj.bias"] = (hidden,)
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            found[f"{name}.mlp.{part}_proj.weight"] = shape
            if config.get("mlp_bias"):
                found[f"{name}.mlp.{part}_proj.bias"] = shape[:1]
    return found


def random_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """f32 values that bf16 holds exactly; every part of a layer moves the residual stream by its own size."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        value = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * value
        elif len(shape) == 2 and "embed" not in name:
            value = value * (1.5 if "q_proj" in name or "k_proj" in name else 1.0) * shape[1] ** -0.5
        return value.bfloat16().float()

    return {name: draw(name, shape) for name, shape in shapes(config).items()}


def write(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    dtype: torch.dtype = torch.bfloat16,
    shards: int = 1,
) -> Path:
    """A checkpoint folder; with several shards, one with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    stored = {name: value.to(dtype).contiguous() for name, value in weights.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(stored)}
    for file in set(weight_map.values()):
        save_file({name: value for name, value in stored.items() if weight_map[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(folder: Path, family: str = "cpu") -> DenseModel:
    """The model of a checkpoint folder, on the kernel family given."""
    architecture = Llama()
    config = architecture.translate_config(load_hf_config(folder).config)
    model = architecture.build(config, ModelContext(kernels=ops.family(family)))
    load_weights(
        model.module, CheckpointIndex.open(folder), model.weight_specs(), ignore=model.unused_tensor, use_tqdm=False
    )
    return model


@frozen
class Checkpoints:
    """Makes checkpoints below ``root``."""

    root: Path

    def make(self, family: str = "llama", *, seed: int = 0, name: str = "checkpoint", **changes: Any) -> Path:
        """A whole random checkpoint of a family, its config changed."""
        config = {**FAMILIES[family], **changes}
        weights = random_weights(config, seed)
        if config["tie_word_embeddings"]:
            del weights["lm_head.weight"]
        return write(self.root / name, config, weights)
