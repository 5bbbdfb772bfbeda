"""From a published ``config.json`` to the model's own config. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.config_keys import (
    MISSING,
    Scope,
    a_bool,
    a_number,
    an_integer,
    from_one_to,
    key,
    not_negative,
    one_or_more_integers,
    or_none,
    part_of,
    positive,
    warn_unknown,
)

from ..layer_plan import LayerPlan
from .rope import RopeConfig, read_rope
from .sections import (
    QUANTIZATION_GROUP,
    STAGE_KEYS,
    AttentionConfig,
    DsparkConfig,
    EngramConfig,
    HyperConnectionConfig,
    IndexerConfig,
    MoeConfig,
    QuantizationConfig,
    ScheduleConfig,
    VisionConfig,
)

#: Architectures this config describes, as ``config.json`` names them.
ARCHITECTURES = ("DeepseekV41ForCausalLM",)

#: Keys that change nothing at inference, or that another part reads.
_IGNORABLE = frozenset(
    {
        "architectures", "model_type", "transformers_version", "auto_map", "_name_or_path", "text_config",
        "vision_config", "quantization_config", "initializer_range", "use_cache", "attention_dropout",
        "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "max_batch_size", "ep_size",
        "pretraining_tp",
    }
)  # fmt: skip

#: Keys with one value we implement. Anything else would run and be wrong.
_FIXED: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "num_key_value_heads": (1,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "scoring_func": ("sqrtsoftplus",),
    "score_func": ("sqrtsoftplus",),
    "gate_temp": (1, 1.0),
    "first_k_dense_replace": (0, None),
    "moe_layer_freq": (1, None),
    "n_group": (1, None),
    "topk_group": (1, None),
    "topk_method": ("noaux_tc",),
    "dtype": ("bfloat16", "bf16", "fp8", None),
    "torch_dtype": ("bfloat16", None),
    "hc_shifted": (True,),
    "use_fp4_sparse_kv": (True,),
}

#: The published quantisation; these are the only values it may have.
_QUANTIZATION: Mapping[str, tuple[object, ...]] = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3",),
    "activation_scheme": ("dynamic",),
    "weight_block_size": ([QUANTIZATION_GROUP, QUANTIZATION_GROUP],),
    "scale_fmt": ("ue8m0",),
    "expert_dtype": ("fp4",),
    "scale_dtype": ("fp8",),
    "modules_to_not_convert": (None, []),
}

#: Values that switch an optional part off.
_NOTHING: tuple[object, ...] = (MISSING, None, 0, [], ())


@attrs.frozen(kw_only=True)
class DeepseekV41Config:
    """Everything the DeepSeek-V4.1 model needs to know, validated."""

    vocab_size: int = key(an_integer, "vocab_size", rule=from_one_to(2**24))
    hidden_size: int = key(an_integer, "hidden_size", "dim", rule=positive)
    num_layers: int = key(an_integer, "num_hidden_layers", "n_layers", rule=positive)
    rms_norm_eps: float = key(a_number, "rms_norm_eps", "norm_eps", rule=not_negative)
    tie_word_embeddings: bool = key(a_bool, "tie_word_embeddings", default=False)
    bos_token_id: int | None = key(or_none(an_integer), "bos_token_id", default=None)
    eos_token_ids: tuple[int, ...] = key(one_or_more_integers, "eos_token_id", default=())
    """As ``config.json`` has them; ``generation_config.json`` may add more."""
    pad_token_id: int | None = key(or_none(an_integer), "pad_token_id", default=None)
    image_token_id: int | None = key(or_none(an_integer), "image_token_id", default=None)

    max_position_embeddings: int
    rope_window: RopeConfig
    """Layers that see only their window, and the drafter."""
    rope_compressed: RopeConfig
    """Every other layer: its queries, window keys and compressed keys."""
    attention: AttentionConfig
    moe: MoeConfig
    hyper_connection: HyperConnectionConfig
    schedule: ScheduleConfig
    plan: LayerPlan
    indexer: IndexerConfig | None
    """None when every layer is window-only."""
    engram: EngramConfig | None
    dspark: DsparkConfig | None
    vision: VisionConfig | None
    quantization: QuantizationConfig | None
    """None for bf16 checkpoints."""

    def __attrs_post_init__(self) -> None:
        for name, token in self._token_ids():
            if not 0 <= token < self.vocab_size:
                raise ConfigError(f"{name} must be below vocab_size ({self.vocab_size}), got {token}")
        if self.indexer and self.attention.rope_head_dim > self.indexer.head_dim:
            raise ConfigError(
                f"qk_rope_head_dim must be at most index_head_dim ({self.indexer.head_dim}), "
                f"got {self.attention.rope_head_dim}"
            )
        if self.engram and self.engram.compressed_vocab_size > self.vocab_size:
            raise ConfigError(
                f"engram_compressed_vocab_size must be at most vocab_size ({self.vocab_size}), "
                f"got {self.engram.compressed_vocab_size}"
            )
        if self.dspark and self.dspark.target_layer_ids[-1] >= self.num_layers:
            raise ConfigError(
                f"dspark_target_layer_ids must be below num_hidden_layers ({self.num_layers}), "
                f"got {list(self.dspark.target_layer_ids)}"
            )
        if self.quantization:
            for name, width in self._quantized_widths():
                if width % QUANTIZATION_GROUP:
                    raise ConfigError(
                        f"{name} must be a multiple of {QUANTIZATION_GROUP}, the quantisation group, got {width}"
                    )

    def _token_ids(self) -> list[tuple[str, int]]:
        named = [
            ("bos_token_id", self.bos_token_id),
            ("pad_token_id", self.pad_token_id),
            ("image_token_id", self.image_token_id),
            ("engram_pad_token_id", self.engram.pad_token_id if self.engram else None),
            ("dspark_noise_token_id", self.dspark.noise_token_id if self.dspark else None),
            *(("eos_token_id", token) for token in self.eos_token_ids),
        ]
        return [(name, token) for name, token in named if token is not None]

    def _quantized_widths(self) -> tuple[tuple[str, int], ...]:
        """Inputs of the quantised linears, which are rounded in groups."""
        attention = self.attention
        return (
            ("hidden_size", self.hidden_size),
            ("q_lora_rank", attention.q_lora_rank),
            ("o_groups x o_lora_rank", attention.o_groups * attention.o_lora_rank),
            ("moe_intermediate_size", self.moe.intermediate_size),
        )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DeepseekV41Config:
        """Translate a parsed ``config.json``: the published nested layout or the reference's flat one.

        Unknown keys are logged as one warning. Raises ConfigError naming the key, its value and the rule.
        """
        text = Scope(*part_of(config, "text_config"), ("", config))
        for name, allowed in _FIXED.items():
            text.require(name, *allowed)
        own = text.values(cls)
        attention = text.build(AttentionConfig)
        rope = read_rope(text, attention.rope_head_dim / attention.head_dim)
        schedule = text.build(ScheduleConfig)
        indexer = text.build_if(any(schedule.compress_ratios), IndexerConfig)
        engram = text.build_if(text.find("engram_layer_ids")[1] not in _NOTHING, EngramConfig)
        dspark = text.build_if(text.find(*STAGE_KEYS)[1] not in _NOTHING, DsparkConfig)
        result = cls(
            **own,
            max_position_embeddings=rope.max_position,
            rope_window=rope.window,
            rope_compressed=rope.compressed,
            attention=attention,
            moe=text.build(MoeConfig),
            hyper_connection=text.build(HyperConnectionConfig),
            schedule=schedule,
            plan=LayerPlan.build(
                own["num_layers"],
                schedule,
                indexer,
                engram_layers=engram.layer_ids if engram else (),
                drafter_stages=dspark.num_stages if dspark else 0,
            ),
            indexer=indexer,
            engram=engram,
            dspark=dspark,
            vision=_vision(config, text),
            quantization=_quantization(config, text),
        )
        warn_unknown(text.unknown(_IGNORABLE))
        return result


def _vision(config: Mapping[str, Any], text: Scope) -> VisionConfig | None:
    """From ``vision_config``, or from flat ``vision_*`` keys with at least one layer."""
    flat = {name: value for name, value in config.items() if name.startswith("vision_")}
    text.used.update(flat)
    flat.pop("vision_config", None)
    nested = part_of(config, "vision_config")
    if not nested and not flat.get("vision_n_layers"):
        return None
    scope = Scope(*nested, ("", flat))
    vision = scope.build(VisionConfig)
    warn_unknown(scope.unknown(frozenset({"model_type"})))
    return vision


def _quantization(config: Mapping[str, Any], text: Scope) -> QuantizationConfig | None:
    """From ``quantization_config``, or from the flat ``dtype: fp8``. Only the published storage exists."""
    scope = Scope(*part_of(config, "quantization_config"), ("", {k: config[k] for k in _QUANTIZATION if k in config}))
    text.used.update(_QUANTIZATION)
    if not scope.places[:-1] and text.find("dtype")[1] != "fp8":
        for name, value in scope.places[-1][1].items():
            if value is not None:
                raise ConfigError(f"{name} is {value!r} but dtype is not 'fp8' and there is no quantization_config")
        return None
    for name, allowed in _QUANTIZATION.items():
        scope.require(name, *allowed)
    if scope.places[:-1] and not scope.has("quant_method"):
        raise ConfigError("quantization_config has no quant_method; it must be 'fp8'")
    unknown = scope.unknown(frozenset())
    if unknown:
        raise ConfigError(f"quantization_config has settings we do not implement: {', '.join(unknown)}")
    return QuantizationConfig()
