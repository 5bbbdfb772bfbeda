"""The tiny model's ``config.json``."""

from __future__ import annotations

from typing import Any

from deepinfer_plugin_deepseek.config import DeepseekV41Config, EngramConfig
from deepinfer_plugin_deepseek.engram import HashLayout

SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>", "<｜noise｜>",
)  # fmt: skip
BOS, EOS, PAD, USER, ASSISTANT, NOISE = range(len(SPECIAL_TOKENS))

#: ``generation_config.json``: a little temperature, for a small model soon errs.
GENERATION = {"do_sample": True, "temperature": 0.3, "top_p": 0.9, "max_new_tokens": 64, "eos_token_id": EOS}
#: Layer by layer: window only; a source that halves, and its reuse; a full-length source that also chooses
#: candidate blocks, its reuse, and a layer that chooses anew among the candidates.
TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 4096,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "sliding_window": 64,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 128,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 24,
    "candidate_block_size": 8,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 3,
    "hc_eps": 1e-6,
    "engram_layer_ids": [0, 2],
    "engram_num_embeddings": [0, 0],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 6000,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": PAD,
    "engram_compressed_vocab_size": 4096,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_noise_token_id": NOISE,
    "dspark_target_layer_ids": [3, 4, 5],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "max_position_embeddings": 2048,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 256,
    },
}  # fmt: skip


def hf_config(compressed_vocab_size: int, **changes: Any) -> dict[str, Any]:
    """The config in its published, nested form; ``changes`` replace keys of the text part."""
    text = {**TEXT, "engram_compressed_vocab_size": compressed_vocab_size, **changes}
    text["engram_num_embeddings"] = _table_rows(text)
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": text,
    }


def model_config(compressed_vocab_size: int, **changes: Any) -> DeepseekV41Config:
    """The same, parsed by the engine's own reader."""
    return DeepseekV41Config.from_hf(hf_config(compressed_vocab_size, **changes))


def _table_rows(text: dict[str, Any]) -> list[int]:
    """Rows of each n-gram table, which the hash layout decides."""
    names = {"max_ngram": "engram_max_ngram_size", "vocab_size": "engram_vocab_size", "num_heads": "engram_n_heads"}
    layout = HashLayout(
        EngramConfig(
            layer_ids=tuple(text["engram_layer_ids"]),
            num_embeddings=(1 << 30,) * len(text["engram_layer_ids"]),
            head_dim=text["engram_head_dim"],
            pad_token_id=text["engram_pad_token_id"],
            compressed_vocab_size=text["engram_compressed_vocab_size"],
            **{field: text[name] for field, name in names.items()},
        )
    )
    return layout.rows
