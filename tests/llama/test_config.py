"""A published config.json of each architecture is understood as transformers understands it, or refused by name."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import deepinfer_plugin_llama
from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.rope_table import YarnConfig
from deepinfer_plugin_llama.config import LlamaConfig
from deepinfer_plugin_llama.families import FAMILIES
from deepinfer_plugin_llama.rope import Llama3Config, RopeConfig

LLAMA2 = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
    "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA32 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


def read(config: dict[str, Any], **changes: Any) -> LlamaConfig:
    """The config with some keys changed; ``...`` takes one away."""
    merged = {**config, **changes}
    return LlamaConfig.from_hf({name: value for name, value in merged.items() if value is not ...})


def windows(config: LlamaConfig) -> list[int | None]:
    return [layer.window_size for layer in config.plan.layers]


def test_the_manifest_names_every_family() -> None:
    manifest = Path(deepinfer_plugin_llama.__file__).with_name("deepinfer_plugin.toml")
    (component,) = tomllib.loads(manifest.read_text())["component"]
    assert component["capabilities"]["architectures"] == list(FAMILIES)


def test_llama2() -> None:
    config = read(LLAMA2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 32, 128)
    assert config.rope == RopeConfig(10000.0) and config.max_position_embeddings == 4096
    assert not (config.query_bias or config.output_bias or config.mlp_bias or config.tie_word_embeddings)
    assert windows(config) == [None] * 32 and config.eos_token_ids == (2,)
    assert read(LLAMA2, num_key_value_heads=...) == config, "as many KV heads as heads"


def test_llama32() -> None:
    config = read(LLAMA32)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 64)
    assert config.rope == RopeConfig(500000.0, llama3=Llama3Config(32.0, 1.0, 4.0, 8192))
    assert config.max_position_embeddings == 131072 and config.tie_word_embeddings
    assert config.eos_token_ids == (128001, 128008, 128009)
    biased = read(LLAMA32, attention_bias=True, mlp_bias=True)
    assert biased.query_bias and biased.output_bias and biased.mlp_bias


def test_mistral() -> None:
    assert windows(read(MISTRAL)) == [4096] * 32
    assert windows(read(MISTRAL, sliding_window=None)) == [None] * 32
    assert windows(read(MISTRAL, sliding_window=...)) == [4096] * 32, "what transformers assumes"
    config = read(MISTRAL, head_dim=64)
    assert config.head_dim == 64 and not config.query_bias


def test_qwen2() -> None:
    config = read(QWEN2)
    assert config.query_bias and not config.output_bias and not config.mlp_bias
    assert windows(config) == [None] * 24 and config.head_dim == 64
    assert windows(read(QWEN2, use_sliding_window=True)) == [None] * 21 + [32768] * 3
    kinds = ["sliding_attention"] * 2 + ["full_attention"] * 22
    assert windows(read(QWEN2, use_sliding_window=True, layer_types=kinds)) == [32768] * 2 + [None] * 22
    assert windows(read(QWEN2, layer_types=["full_attention"] * 24)) == [None] * 24


@pytest.mark.parametrize("config", [LLAMA2, LLAMA32, MISTRAL, QWEN2], ids=lambda c: c["model_type"])
def test_published_configs_need_no_warning(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read(config)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        read(config, num_key_value_head=2)
    assert "num_key_value_head; did you mean 'num_key_value_heads'?" in caplog.text


YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "yarn", **YARN}},
        {"rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_scaling": {"rope_type": "yarn", "type": "yarn", "beta_fast": 32, "beta_slow": 1.0, **YARN}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}, "rope_theta": ...},
        {"rope_parameters": {"rope_type": "yarn", **YARN}, "rope_scaling": {"type": "yarn", **YARN}},
    ],
    ids=["type", "rope_type", "both types", "original length omitted", "rope_parameters", "both tables"],
)
def test_every_yarn_spelling_means_the_same(spelling: dict[str, Any]) -> None:
    config = read(QWEN2, **spelling)
    magnitude = 0.1 * math.log(4) + 1
    assert config.rope == RopeConfig(1e6, yarn=YarnConfig(4.0, 32768, 32.0, 1.0), magnitude=magnitude)
    assert config.max_position_embeddings == 131072, "YaRN reaches beyond the original length"


@pytest.mark.parametrize("off", [..., None, {}, {"rope_type": "default"}, {"type": "default", "rope_theta": 1e6}])
def test_no_scaling(off: Any) -> None:
    assert read(QWEN2, rope_scaling=off).rope == RopeConfig(1e6)


def test_linear_scaling() -> None:
    config = read(LLAMA2, rope_scaling={"type": "linear", "factor": 2})
    assert config.rope == RopeConfig(10000.0, linear=2.0) and config.max_position_embeddings == 4096


LLAMA3 = LLAMA32["rope_scaling"]


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (LLAMA2, {"vocab_size": ...}, ["no vocab_size"]),
        (LLAMA2, {"hidden_size": True}, ["hidden_size", "an integer", "True"]),
        (LLAMA2, {"num_hidden_layers": 0}, ["num_hidden_layers", "from 1 to 65536", "0"]),
        (LLAMA2, {"architectures": ["LlamaForCausal"]}, ["architectures", "MistralForCausalLM", "LlamaForCausal"]),
        (LLAMA2, {"architectures": ...}, ["architectures", "None"]),
        (LLAMA2, {"num_hidden_layers": 10**30}, ["num_hidden_layers", "from 1 to 65536"]),
        (LLAMA2, {"num_key_value_heads": 5}, ["num_key_value_heads", "32", "5"]),
        (LLAMA2, {"num_key_value_heads": 0}, ["num_key_value_heads", "0"]),
        (LLAMA2, {"num_attention_heads": 33, "num_key_value_heads": 33}, ["hidden_size", "33", "4096"]),
        (LLAMA2, {"head_dim": 63}, ["head_dim", "even", "63"]),
        (LLAMA2, {"hidden_act": "gelu"}, ["hidden_act", "'silu'", "'gelu'"]),
        (LLAMA2, {"max_position_embeddings": ...}, ["max_position_embeddings"]),
        (LLAMA2, {"max_position_embeddings": 0}, ["max_position_embeddings", "at least 1", "0"]),
        (LLAMA2, {"eos_token_id": 32000}, ["eos_token_id", "32000"]),
        (LLAMA2, {"sliding_window": 4096}, ["sliding_window", "None", "4096"]),
        (LLAMA2, {"quantization_config": {"quant_method": "gptq"}}, ["quantization_config", "gptq"]),
        (LLAMA2, {"torch_dtype": "float8"}, ["torch_dtype", "float8"]),
        (LLAMA2, {"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        (MISTRAL, {"attention_bias": True}, ["attention_bias", "True"]),
        (MISTRAL, {"sliding_window": 0}, ["sliding_window", "at least 1", "0"]),
        (QWEN2, {"use_mrope": True}, ["use_mrope", "True"]),
        (QWEN2, {"layer_types": ["full_attention"]}, ["layer_types", "24", "1"]),
        (QWEN2, {"layer_types": ["sliding_attention"] * 24}, ["layer_types", "use_sliding_window"]),
        (QWEN2, {"layer_types": ["linear_attention"] * 24}, ["layer_types", "sliding_attention"]),
        (LLAMA2, {"rope_theta": 1}, ["rope_theta", "greater than 1"]),
        (LLAMA2, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_scaling", "'linear'", "'dynamic'"]),
        (LLAMA2, {"rope_scaling": {"type": "longrope", "factor": 2.0}}, ["rope_scaling", "'longrope'"]),
        (LLAMA2, {"rope_scaling": {"factor": 2.0}}, ["rope_scaling", "rope_type", "none"]),
        (LLAMA2, {"rope_scaling": "linear"}, ["rope_scaling", "a table", "'linear'"]),
        (LLAMA2, {"rope_scaling": {"type": "linear"}}, ["'linear'", "factor"]),
        (LLAMA2, {"rope_scaling": {"type": "linear", "factor": 0.5}}, ["factor", "at least 1", "0.5"]),
        (LLAMA2, {"rope_scaling": {"type": "linear", "factr": 2.0}}, ["factr", "'factor'"]),
        (LLAMA2, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["full_attention"]),
        (LLAMA2, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["low_freq_factor and high_freq_factor"]),
        (LLAMA32, {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, ["high_freq_factor", "low_freq_factor"]),
        (LLAMA32, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, ["contradicts", "rope_parameters"]),
        (LLAMA32, {"rope_parameters": {**LLAMA3, "rope_theta": 1e4}}, ["contradicts", "rope_theta", "10000"]),
        (QWEN2, {"rope_scaling": {"type": "yarn", **YARN, "truncate": False}}, ["truncate", "True", "False"]),
        (QWEN2, {"rope_scaling": {"type": "yarn", **YARN, "attention_factor": 0}}, ["attention_factor", "0"]),
        (QWEN2, {"rope_scaling": {"type": "yarn", **YARN, "beta_slow": 40}}, ["beta_fast", "beta_slow", "40"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(config: dict[str, Any], changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        read(config, **changes)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_reading_a_config_imports_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from deepinfer_plugin_llama.architecture import Llama\n"
        f"print(Llama().translate_config({QWEN2!r}).plan.table()[1][0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "('0', 'full', '-')", done.stderr
