"""The plugin runs the suite of its seam, once per architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from deepinfer_core.testing import ModelSuite

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 1,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
}  # fmt: skip


class TestLlama(ModelSuite):
    """Tied, with biases."""

    plugin = "llama"
    config: ClassVar = {**CONFIG, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}


class TestMistral(ModelSuite):
    """Every layer behind a window."""

    plugin = "llama"
    config: ClassVar = {**CONFIG, "architectures": ["MistralForCausalLM"], "sliding_window": 40}


class TestQwen2(ModelSuite):
    """One layer that sees everything and one behind a window."""

    plugin = "llama"
    config: ClassVar = {
        **CONFIG,
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 40,
        "layer_types": ["full_attention", "sliding_attention"],
    }
