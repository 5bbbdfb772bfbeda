"""A published config.json becomes the internal one, in every spelling; whatever contradicts itself is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import ConfigError
from deepinfer_plugin_deepseek.config import DeepseekV41Config, QuantizationConfig, VisionConfig, YarnConfig

DATA = Path(__file__).parents[1] / "data"
GOLDEN = json.loads((DATA / "v41-tiny-fp8fp4" / "config.json").read_text())
PLAIN = json.loads((DATA / "v41-tiny-bf16" / "config.json").read_text())
LONG = json.loads((DATA / "v41-long-fp8fp4" / "config.json").read_text())
TOP = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")

#: published key -> the reference model's flat key, written out by hand: the renames are what is tested.
FLAT = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "qk_rope_head_dim": "rope_head_dim", "sliding_window": "window_size", "rms_norm_eps": "norm_eps",
    "moe_intermediate_size": "moe_inter_dim", "num_experts_per_tok": "n_activated_experts",
    "routed_scaling_factor": "route_scale", "scoring_func": "score_func", "num_nextn_predict_layers": "n_mtp_layers",
    "kv_source_layer_ids": "kv_source_layers", "index_source_layer_ids": "index_source_layers",
    "candidate_source_layer_id": "candidate_source_layer", "engram_pad_token_id": "engram_pad_id",
    "dspark_num_experts_per_tok": "dspark_n_activated_experts", "max_position_embeddings": "max_seq_len",
}  # fmt: skip
VISION = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "patch_size": 7,
    "rope_theta": 10000.0, "downsample_ratio": 3, "max_image_tokens": 32, "min_pixels": 1764, "max_wh_ratio": None,
}  # fmt: skip
FLAT_VISION = {
    "vision_n_layers": 2, "vision_dim": 64, "vision_n_heads": 2, "vision_inter_dim": 96, "vision_patch_size": 7,
    "vision_rope_theta": 10000.0, "vision_downsample_ratio": 3, "vision_max_n_token": 32, "vision_min_pixels": 1764,
    "vision_max_wh_ratio": None,
}  # fmt: skip


def flat(config):
    """The same model in the reference's flat layout."""
    text = dict(config["text_config"])
    yarn = text.pop("rope_scaling")
    result = {FLAT.get(name, name): value for name, value in text.items() if name != "model_type"}
    result |= {"rope_factor": yarn["factor"], "beta_fast": yarn["beta_fast"], "beta_slow": yarn["beta_slow"]}
    result |= {"original_seq_len": yarn["original_max_position_embeddings"]}
    if "quantization_config" in config:
        result |= {"dtype": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4", "scale_dtype": "fp8"}
    return result | {name: config[name] for name in TOP}


def changed(config=GOLDEN, /, **text):
    """A copy with keys of ``text_config`` set, or removed where the value is ``...``."""
    result = copy.deepcopy(config)
    for name, value in text.items():
        result["text_config"].pop(name, None)
        if value is not ...:
            result["text_config"][name] = value
    return result


def read(config) -> DeepseekV41Config:
    return DeepseekV41Config.from_hf(config)


def refused(config, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(config)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def test_golden_values():
    config = read(GOLDEN)
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (512, 128, 6)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-20, 4096)
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id, config.image_token_id) == (0, (1,), 2, 3)
    assert config.attention.softmax_scale == 64**-0.5
    assert config.attention.group_dim == 4 * 64 // 2
    assert config.moe.num_experts_per_token == 3 and config.moe.route_scale == 1.5 and config.moe.normalize
    assert config.rope_window.theta == 10000.0 and config.rope_window.yarn is None
    assert config.rope_compressed.theta == 160000.0
    assert config.rope_compressed.yarn == YarnConfig(4.0, 32, 32.0, 1.0)
    assert config.engram.layer_ids == (0, 1) and config.engram.num_columns == 6 and config.engram.row_dim == 192
    assert config.dspark.num_stages == 3 and config.dspark.target_layer_ids == (3, 4, 5)
    assert config.quantization == QuantizationConfig() and config.vision is None
    assert not config.tie_word_embeddings


def test_the_published_model(caplog):
    """DeepSeek-V4.1-Flash's own settings are accepted whole: nothing is refused, nothing unknown."""
    text = GOLDEN["text_config"] | {
        "vocab_size": 129280, "hidden_size": 5120, "moe_intermediate_size": 2304, "num_hidden_layers": 40,
        "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024,
        "o_groups": 8, "swiglu_limit": 10.0, "rope_theta": 10000, "compress_rope_theta": 160000,
        "n_routed_experts": 384, "num_experts_per_tok": 6, "sliding_window": 128,
        "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3, "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32, "index_head_dim": 128,
        "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
        "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682], "engram_vocab_size": 16000000,
        "engram_n_heads": 8, "engram_head_dim": 256, "engram_compressed_vocab_size": 99092, "dspark_block_size": 5,
        "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3, "max_position_embeddings": 1048576,
        "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 65536},
    }  # fmt: skip
    vision = {
        "model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024, "num_attention_heads": 16,
        "intermediate_size": 2816, "patch_size": 14, "rope_theta": 10000, "downsample_ratio": 3,
        "max_image_tokens": 1024, "min_pixels": 295936, "max_wh_ratio": None,
    }  # fmt: skip
    config = read(GOLDEN | {"image_token_id": 129264, "text_config": text, "vision_config": vision})
    assert caplog.text == ""
    assert len(config.plan) == 40 and config.dspark.num_stages == 3
    assert (config.engram.num_columns, config.engram.row_dim) == (24, 6144)
    assert config.attention.group_dim == 4096 and config.rope_compressed.yarn.original_max_position == 65536
    assert config.vision.num_layers == 32 and config.quantization is not None


def test_without_quantization():
    assert read(PLAIN).quantization is None
    assert attrs.evolve(read(PLAIN), quantization=QuantizationConfig()) == read(GOLDEN)


@pytest.mark.parametrize("config", [GOLDEN, PLAIN, LONG])
def test_the_flat_spelling_means_the_same(config):
    assert read(flat(config)) == read(config)


def test_vision_in_both_spellings():
    nested = read(GOLDEN | {"vision_config": {"model_type": "deepseek_v41_vision", **VISION}})
    assert nested.vision == VisionConfig(
        num_layers=2, hidden_size=64, num_heads=2, intermediate_size=96, patch_size=7, rope_theta=10000.0,
        downsample_ratio=3, max_image_tokens=32, min_pixels=1764, max_wh_ratio=None,
    )  # fmt: skip
    assert read(flat(GOLDEN) | FLAT_VISION) == nested
    assert read(flat(GOLDEN) | FLAT_VISION | {"vision_n_layers": 0}).vision is None


def test_golden_configs_have_no_unknown_keys(caplog):
    for config in (GOLDEN, PLAIN, LONG, flat(GOLDEN), GOLDEN | {"vision_config": VISION}):
        read(config)
    assert caplog.text == ""


def test_unknown_keys_are_one_warning_with_the_nearest_name(caplog):
    read(changed(index_top_k=5, zzz=1, initializer_range=0.5))
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "text_config.index_top_k; did you mean 'index_topk'?" in message
    assert "text_config.zzz" in message and "initializer_range" not in message


@pytest.mark.parametrize(("value", "expected"), [(1, (1,)), ([1, 7], (1, 7)), (None, ()), ([], ())])
def test_end_tokens(value, expected):
    assert read(GOLDEN | {"eos_token_id": value}).eos_token_ids == expected


def test_models_without_the_optional_parts():
    bare = changed(
        engram_layer_ids=[], num_nextn_predict_layers=0, compress_ratios=[0] * 6, kv_source_layer_ids=[],
        index_source_layer_ids=[], candidate_source_layer_id=None,
    )  # fmt: skip
    config = read(bare)
    assert (config.engram, config.dspark, config.indexer) == (None, None, None)
    assert {layer.mode for layer in config.plan.layers} == {"window"}
    for prefix in ("engram_", "dspark_", "index_", "candidate_"):
        for name in [name for name in bare["text_config"] if name.startswith(prefix)]:
            del bare["text_config"][name]
    del bare["text_config"]["num_nextn_predict_layers"], bare["text_config"]["kv_source_layer_ids"]
    assert read(bare) == config


# --- refusals -------------------------------------------------------------------------------------------------


REQUIRED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps", "num_attention_heads", "head_dim",
    "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "sliding_window", "compress_ratios",
    "rope_theta", "compress_rope_theta", "index_n_heads", "index_head_dim", "index_topk", "n_routed_experts",
    "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor", "swiglu_limit", "hc_mult",
    "hc_sinkhorn_iters", "hc_eps", "engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size",
    "engram_n_heads", "engram_head_dim", "engram_pad_token_id", "engram_compressed_vocab_size", "dspark_block_size",
    "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank", "dspark_n_routed_experts",
    "dspark_num_experts_per_tok",
)  # fmt: skip
#: Optional keys whose type matters all the same.
TYPED = (*REQUIRED, "norm_topk_prob", "tie_word_embeddings", "kv_source_layer_ids", "max_position_embeddings",
         "n_shared_experts", "candidate_topk_blocks", "candidate_block_size", "num_nextn_predict_layers")  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name):
    refused(changed(**{name: ...}), name, "required")


@given(name=st.sampled_from(TYPED), value=st.sampled_from(["7", {"a": 1}, float("nan"), [1.5], [True], "true"]))
def test_a_value_of_the_wrong_type_is_named_and_shown(name, value):
    refused(changed(**{name: value}), name, "must be", repr(value))


@pytest.mark.parametrize("name", [n for n in TYPED if isinstance(GOLDEN["text_config"][n], int)])
def test_true_is_not_an_integer(name):
    if not isinstance(GOLDEN["text_config"][name], bool):
        refused(changed(**{name: True}), name, "must be", "True")


POSITIVE = tuple(
    name
    for name in REQUIRED
    if isinstance(GOLDEN["text_config"][name], int | float)
    and name not in ("rms_norm_eps", "engram_pad_token_id", "dspark_noise_token_id")
)


@given(name=st.sampled_from(POSITIVE), value=st.integers(-(10**9), 0))
def test_sizes_are_positive(name, value):
    refused(changed(**{name: value}), name.removeprefix("compress_"), str(value))


@pytest.mark.parametrize(("published", "other"), FLAT.items())
def test_two_spellings_that_disagree(published, other):
    value = GOLDEN["text_config"][published]
    read(changed(**{other: value}))
    wrong = "softmax" if isinstance(value, str) else [0] if isinstance(value, list) else value + 1
    refused(changed(**{other: wrong}), other, repr(wrong))


def test_the_nested_and_the_top_level_must_agree():
    read(GOLDEN | {"vocab_size": 512})
    refused(GOLDEN | {"vocab_size": 513}, "text_config.vocab_size is 512", "vocab_size is 513", "keep one")


@pytest.mark.parametrize("name", ["text_config", "vision_config", "quantization_config"])
def test_parts_are_tables(name):
    refused(GOLDEN | {name: 3}, name, "table")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_dim": 40}, ["head_dim", "multiple of 32", "40"]),
        ({"index_head_dim": 48}, ["index_head_dim", "multiple of 32", "48"]),
        ({"engram_head_dim": 16}, ["engram_head_dim", "multiple of 32", "16"]),
        ({"qk_rope_head_dim": 15}, ["qk_rope_head_dim", "even", "15"]),
        ({"qk_rope_head_dim": 66}, ["qk_rope_head_dim", "head_dim (64)", "66"]),
        ({"index_head_dim": 32, "qk_rope_head_dim": 48}, ["qk_rope_head_dim", "index_head_dim (32)", "48"]),
        ({"o_groups": 3}, ["num_attention_heads", "o_groups (3)", "4"]),
        ({"num_experts_per_tok": 9}, ["num_experts_per_tok", "n_routed_experts (8)", "9"]),
        ({"n_routed_experts": 10**12}, ["n_routed_experts", "from 1 to 65536", "1000000000000"]),
        ({"vocab_size": 10**12}, ["vocab_size", "from 1 to 16777216", "1000000000000"]),
        ({"hc_mult": 10**12}, ["hc_mult", "from 1 to 64", "1000000000000"]),
        ({"hc_sinkhorn_iters": 10**12}, ["hc_sinkhorn_iters", "from 1 to 1024", "1000000000000"]),
        ({"n_shared_experts": 2}, ["n_shared_experts", "1", "2"]),
        ({"dspark_num_experts_per_tok": 5}, ["dspark_num_experts_per_tok", "(4)", "5"]),
        ({"dspark_target_layer_ids": []}, ["dspark_target_layer_ids", "at least one"]),
        ({"dspark_target_layer_ids": [5, 3]}, ["dspark_target_layer_ids", "increasing", "[5, 3]"]),
        ({"dspark_target_layer_ids": [5, 6]}, ["dspark_target_layer_ids", "num_hidden_layers (6)"]),
        ({"dspark_noise_token_id": 512}, ["dspark_noise_token_id", "vocab_size (512)"]),
        ({"engram_pad_token_id": 512}, ["engram_pad_token_id", "vocab_size (512)"]),
        ({"engram_layer_ids": [1, 0]}, ["engram_layer_ids", "increasing"]),
        ({"engram_layer_ids": [0, 6]}, ["engram_layer_ids", "num_hidden_layers (6)", "6"]),
        ({"engram_num_embeddings": [660]}, ["engram_num_embeddings", "[0, 1]", "[660]"]),
        ({"engram_num_embeddings": [660, 5]}, ["engram_num_embeddings", "at least 6"]),
        ({"engram_max_ngram_size": 1}, ["engram_max_ngram_size", "at least 2"]),
        ({"engram_compressed_vocab_size": 513}, ["engram_compressed_vocab_size", "vocab_size (512)", "513"]),
        ({"hidden_size": 136}, ["hidden_size", "multiple of 32", "136"]),
        ({"q_lora_rank": 65}, ["q_lora_rank", "multiple of 32", "65"]),
        ({"o_lora_rank": 17}, ["o_groups x o_lora_rank", "34"]),
        ({"moe_intermediate_size": 97}, ["moe_intermediate_size", "97"]),
        ({"vocab_size": 2}, ["vocab_size (2)"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "'silu'", "'gelu'"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads", "1", "2"]),
        ({"attention_bias": True}, ["attention_bias", "False", "True"]),
        ({"scoring_func": "softmax"}, ["scoring_func", "sqrtsoftplus"]),
        ({"topk_method": "greedy"}, ["topk_method", "noaux_tc"]),
        ({"hc_shifted": False}, ["hc_shifted"]),
        ({"first_k_dense_replace": 3}, ["first_k_dense_replace", "3"]),
        ({"n_group": 8}, ["n_group", "8"]),
        ({"use_fp4_sparse_kv": False}, ["use_fp4_sparse_kv"]),
        ({"dtype": "float32"}, ["dtype", "float32"]),
    ],
)
def test_inconsistencies(change, words):
    refused(changed(**change), *words)


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"])
@pytest.mark.parametrize("value", [-1, 512])
def test_token_ids_are_in_the_vocabulary(name, value):
    refused(GOLDEN | {name: value}, name, "512", str(value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quant_method", "gptq"),
        ("activation_scheme", "static"),
        ("weight_block_size", [128, 128]),
        ("scale_fmt", None),
        ("expert_dtype", "fp8"),
        ("modules_to_not_convert", ["head"]),
        ("group_size", 64),
    ],
)
def test_other_quantisations_are_refused(name, value):
    quantization = GOLDEN["quantization_config"] | {name: value}
    refused(GOLDEN | {"quantization_config": quantization}, f"quantization_config.{name}")


def test_quantisation_without_method():
    refused(GOLDEN | {"quantization_config": {"expert_dtype": "fp4"}}, "no quant_method")


def test_flat_quantisation_must_be_whole():
    refused(flat(PLAIN) | {"expert_dtype": "fp4"}, "expert_dtype is 'fp4'", "dtype is not 'fp8'")
    refused(flat(GOLDEN) | {"expert_dtype": "bf16"}, "expert_dtype")


def test_vision_sizes():
    refused(GOLDEN | {"vision_config": VISION | {"hidden_size": 60}}, "vision hidden_size", "(8)", "60")


def test_translation_needs_no_torch():
    code = (
        "import json, sys; from deepinfer_plugin_deepseek.config import DeepseekV41Config as C\n"
        f"C.from_hf(json.load(open({str(DATA / 'v41-tiny-bf16' / 'config.json')!r}))).plan.table()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- rotary spellings (fault 27) ------------------------------------------------------------------------------

YARN = {"factor": 4, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
MAIN = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
COMPRESS = {**YARN, "rope_type": "yarn", "rope_theta": 160000.0, "partial_rotary_factor": 0.25, "attention_factor": 1.0}

SPELLINGS = {
    "type": {"rope_scaling": {"type": "yarn", **YARN}},
    "rope_type": {"rope_scaling": {"rope_type": "yarn", **YARN}},
    "both types": {"rope_scaling": {"rope_type": "yarn", "type": "yarn", **YARN}},
    "rope_parameters": {"rope_scaling": ..., "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000, **YARN}},
    "theta inside only": {
        "rope_scaling": ..., "rope_theta": ...,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000, **YARN},
    },
    "two tables": {
        "rope_scaling": ..., "rope_theta": ..., "compress_rope_theta": ...,
        "rope_parameters": {"main": MAIN, "compress": COMPRESS},
    },
    "two tables and the thetas": {"rope_scaling": ..., "rope_parameters": {"main": MAIN, "compress": COMPRESS}},
    "both names": {"rope_parameters": {"rope_type": "yarn", **YARN}},
    "flat": {
        "rope_scaling": ..., "rope_factor": 4, "original_seq_len": 32, "beta_fast": 32, "beta_slow": 1
    },
    "betas omitted": {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32}},
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_every_rope_spelling_means_the_same(spelling):
    assert read(changed(**spelling)) == read(GOLDEN)


@pytest.mark.parametrize("name", ["type", "rope_type"])
def test_an_omitted_original_length_is_the_maximum_over_the_factor(name):
    scaling = {name: "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1}
    omitted = read(changed(max_position_embeddings=128, rope_scaling=scaling))
    assert omitted == read(changed(max_position_embeddings=128, rope_scaling={**scaling, **YARN}))
    assert omitted.rope_compressed.yarn.original_max_position == 32


def test_an_omitted_maximum_is_the_original_length_times_the_factor():
    assert read(changed(max_position_embeddings=...)).max_position_embeddings == 128


@pytest.mark.parametrize("off", [..., None, {}, {"rope_type": "default"}, {"type": "default"}])
def test_no_scaling(off):
    config = read(changed(rope_scaling=off))
    assert config.rope_compressed.yarn is None and config.rope_compressed.theta == 160000.0


def test_the_flat_original_length_0_means_no_scaling():
    assert read(flat(GOLDEN) | {"original_seq_len": 0}).rope_compressed.yarn is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_scaling": {"type": "foo", **YARN}}, ["rope_scaling", "'foo'", "'yarn'"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4}}, ["'linear'"]),
        ({"rope_scaling": YARN}, ["rope_type", "got none"]),
        ({"rope_scaling": {"type": "yarn", "rope_type": "default", **YARN}}, ["contradicts", "type"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0}}, ["mscale", "not a setting", "Known"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "facter": 1.0}}, ["facter", "did you mean 'factor'"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "attention_factor": 1.2}}, ["attention_factor", "1.2"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ({"rope_scaling": {"type": "yarn", "beta_fast": 32}}, ["factor"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "factor": 0}}, ["factor", "at least 1", "0"]),
        ({"rope_scaling": {"type": "yarn", "factor": 0}}, ["factor", "at least 1", "0"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "factor": "4"}}, ["rope_scaling.factor", "number", "'4'"]),
        ({"rope_scaling": {"type": "yarn", **YARN, "beta_fast": 1, "beta_slow": 1}}, ["beta_fast", "beta_slow"]),
        ({"rope_scaling": {"type": "yarn", "factor": 3}, "max_position_embeddings": 100}, ["original", "integer"]),
        ({"rope_scaling": {"type": "yarn", "factor": 3}, "max_position_embeddings": ...}, ["both are absent"]),
        ({"rope_scaling": ..., "max_position_embeddings": ...}, ["max_position_embeddings", "required"]),
        ({"rope_scaling": "yarn"}, ["rope_scaling", "table", "'yarn'"]),
        ({"rope_parameters": {"type": "yarn", **YARN, "factor": 8}}, ["rope_scaling", "rope_parameters", "different"]),
        ({"rope_factor": 8}, ["rope_scaling", "rope_factor", "different"]),
        ({"rope_scaling": {"type": "yarn", "rope_theta": 5.0, **YARN}}, ["rope_theta is 10000", "5.0"]),
        ({"rope_parameters": {"main": COMPRESS, "compress": COMPRESS}, "rope_scaling": ...}, ["main", "'yarn'"]),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5.0, **YARN}, "rope_theta": 10000.0},
            ["contradicts", "5.0"],
        ),
        ({"rope_parameters": {"main": 3}, "rope_scaling": ...}, ["rope_parameters.main", "a table", "3"]),
        (
            {"rope_parameters": {"main": MAIN, "compressed": COMPRESS}, "rope_scaling": ...},
            ["compressed", "'compress'"],
        ),
        ({"rope_theta": 1.0}, ["rope_theta", "greater than 1"]),
    ],
)
def test_rope_refusals(change, words):
    refused(changed(**change), *words)
