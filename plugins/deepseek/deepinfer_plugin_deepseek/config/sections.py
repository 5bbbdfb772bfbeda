"""The internal model config: one frozen class per part, each field with its published key first.

Rules that involve one value sit on its field; rules between values of one part in ``__attrs_post_init__``.
Rules about which layer feeds which are :mod:`..layer_plan`'s.
"""

from __future__ import annotations

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.config_keys import (
    a_bool,
    a_number,
    a_source,
    above_zero,
    an_integer,
    even,
    from_one_to,
    integers,
    key,
    multiple_of,
    not_negative,
    or_none,
    positive,
)

from ..layer_plan import increasing

#: Values that share one quantisation scale: KV, index keys and the inputs of quantised linears.
QUANTIZATION_GROUP = 32

#: Number of drafter stages; a checkpoint without a drafter has none or 0.
STAGE_KEYS = ("num_nextn_predict_layers", "n_mtp_layers")


@attrs.frozen(kw_only=True)
class AttentionConfig:
    """Low-rank multi-query attention: all heads share one key, which is also the value."""

    num_heads: int = key(an_integer, "num_attention_heads", "n_heads", rule=positive)
    head_dim: int = key(an_integer, "head_dim", rule=multiple_of(QUANTIZATION_GROUP))
    rope_head_dim: int = key(an_integer, "qk_rope_head_dim", "rope_head_dim", rule=even)
    q_lora_rank: int = key(an_integer, "q_lora_rank", rule=positive)
    o_lora_rank: int = key(an_integer, "o_lora_rank", rule=positive)
    o_groups: int = key(an_integer, "o_groups", rule=positive)
    window_size: int = key(an_integer, "sliding_window", "window_size", rule=positive)

    def __attrs_post_init__(self) -> None:
        if self.rope_head_dim > self.head_dim:
            raise ConfigError(f"qk_rope_head_dim must be at most head_dim ({self.head_dim}), got {self.rope_head_dim}")
        if self.num_heads % self.o_groups:
            raise ConfigError(
                f"num_attention_heads must be a multiple of o_groups ({self.o_groups}), got {self.num_heads}"
            )

    @property
    def softmax_scale(self) -> float:
        """``head_dim ** -0.5``."""
        return float(self.head_dim**-0.5)

    @property
    def group_dim(self) -> int:
        """Inputs of one output-projection group: ``num_heads * head_dim / o_groups``."""
        return self.num_heads * self.head_dim // self.o_groups


@attrs.frozen(kw_only=True)
class ScheduleConfig:
    """Which layer compresses, indexes and restricts; :class:`..layer_plan.LayerPlan` gives it meaning."""

    compress_ratios: tuple[int, ...] = key(integers, "compress_ratios")
    kv_sources: tuple[int, ...] = key(integers, "kv_source_layer_ids", "kv_source_layers", default=())
    index_sources: tuple[int, ...] = key(integers, "index_source_layer_ids", "index_source_layers", default=())
    candidate_source: int | None = key(a_source, "candidate_source_layer_id", "candidate_source_layer", default=None)


@attrs.frozen(kw_only=True)
class IndexerConfig:
    """The indexer that picks the compressed entries a row reads, and its candidate blocks."""

    num_heads: int = key(an_integer, "index_n_heads", rule=positive)
    head_dim: int = key(an_integer, "index_head_dim", rule=multiple_of(QUANTIZATION_GROUP))
    topk: int = key(an_integer, "index_topk", rule=positive)
    candidate_topk_blocks: int = key(an_integer, "candidate_topk_blocks", rule=not_negative, default=0)
    candidate_block_size: int = key(an_integer, "candidate_block_size", rule=not_negative, default=0)


@attrs.frozen(kw_only=True)
class MoeConfig:
    """Routed and shared experts of every layer. ``intermediate_size`` is one expert's width."""

    num_routed_experts: int = key(an_integer, "n_routed_experts", rule=from_one_to(2**16))
    num_shared_experts: int = key(an_integer, "n_shared_experts", rule=positive, default=1)
    num_experts_per_token: int = key(an_integer, "num_experts_per_tok", "n_activated_experts", rule=positive)
    intermediate_size: int = key(an_integer, "moe_intermediate_size", "moe_inter_dim", rule=positive)
    route_scale: float = key(a_number, "routed_scaling_factor", "route_scale", rule=above_zero)
    normalize: bool = key(a_bool, "norm_topk_prob", default=True)
    swiglu_limit: float = key(a_number, "swiglu_limit", rule=above_zero)

    def __attrs_post_init__(self) -> None:
        if self.num_shared_experts != 1:
            raise ConfigError(f"n_shared_experts must be 1, got {self.num_shared_experts}")
        _at_most("num_experts_per_tok", self.num_experts_per_token, "n_routed_experts", self.num_routed_experts)


@attrs.frozen(kw_only=True)
class HyperConnectionConfig:
    """Manifold-constrained hyper-connections: ``mult`` residual streams."""

    mult: int = key(an_integer, "hc_mult", rule=from_one_to(64))
    sinkhorn_iters: int = key(an_integer, "hc_sinkhorn_iters", rule=from_one_to(1024))
    eps: float = key(a_number, "hc_eps", rule=above_zero)


@attrs.frozen(kw_only=True)
class EngramConfig:
    """Hashed n-gram memory: ``num_embeddings[i]`` rows of ``head_dim`` at layer ``layer_ids[i]``."""

    layer_ids: tuple[int, ...] = key(integers, "engram_layer_ids")
    num_embeddings: tuple[int, ...] = key(integers, "engram_num_embeddings")
    max_ngram: int = key(an_integer, "engram_max_ngram_size")
    vocab_size: int = key(an_integer, "engram_vocab_size", rule=positive)
    num_heads: int = key(an_integer, "engram_n_heads", rule=positive)
    head_dim: int = key(an_integer, "engram_head_dim", rule=multiple_of(QUANTIZATION_GROUP))
    pad_token_id: int = key(an_integer, "engram_pad_token_id", "engram_pad_id", rule=not_negative)
    compressed_vocab_size: int = key(an_integer, "engram_compressed_vocab_size", rule=positive)

    def __attrs_post_init__(self) -> None:
        if self.max_ngram < 2:
            raise ConfigError(f"engram_max_ngram_size must be at least 2, got {self.max_ngram}")
        increasing("engram_layer_ids", self.layer_ids)
        if len(self.num_embeddings) != len(self.layer_ids):
            raise ConfigError(
                f"engram_num_embeddings must have one entry per engram layer {list(self.layer_ids)}, "
                f"got {list(self.num_embeddings)}"
            )
        if any(rows < self.num_columns for rows in self.num_embeddings):
            raise ConfigError(
                f"engram_num_embeddings must be at least {self.num_columns} (n-gram sizes x heads), "
                f"got {list(self.num_embeddings)}"
            )

    @property
    def num_columns(self) -> int:
        """Table rows read per token: n-gram sizes x heads."""
        return (self.max_ngram - 1) * self.num_heads

    @property
    def row_dim(self) -> int:
        """Width of a token's concatenated rows, the input of ``engram.wkv``."""
        return self.num_columns * self.head_dim


@attrs.frozen(kw_only=True)
class DsparkConfig:
    """The checkpoint's drafter: ``num_stages`` window-only layers that read ``target_layer_ids``."""

    num_stages: int = key(an_integer, *STAGE_KEYS, rule=positive)
    block_size: int = key(an_integer, "dspark_block_size", rule=positive)
    noise_token_id: int = key(an_integer, "dspark_noise_token_id", rule=not_negative)
    target_layer_ids: tuple[int, ...] = key(integers, "dspark_target_layer_ids")
    markov_rank: int = key(an_integer, "dspark_markov_rank", rule=positive)
    num_routed_experts: int = key(an_integer, "dspark_n_routed_experts", rule=positive)
    num_experts_per_token: int = key(
        an_integer, "dspark_num_experts_per_tok", "dspark_n_activated_experts", rule=positive
    )

    def __attrs_post_init__(self) -> None:
        increasing("dspark_target_layer_ids", self.target_layer_ids)
        if not self.target_layer_ids:
            raise ConfigError("dspark_target_layer_ids must name at least one layer, got []")
        _at_most(
            "dspark_num_experts_per_tok", self.num_experts_per_token,
            "dspark_n_routed_experts", self.num_routed_experts,
        )  # fmt: skip


@attrs.frozen(kw_only=True)
class VisionConfig:
    """The picture tower. Sizes in pixels; ``max_image_tokens`` language-model positions per picture."""

    num_layers: int = key(an_integer, "num_hidden_layers", "vision_n_layers", rule=positive)
    hidden_size: int = key(an_integer, "hidden_size", "vision_dim", rule=positive)
    num_heads: int = key(an_integer, "num_attention_heads", "vision_n_heads", rule=positive)
    intermediate_size: int = key(an_integer, "intermediate_size", "vision_inter_dim", rule=positive)
    patch_size: int = key(an_integer, "patch_size", "vision_patch_size", rule=positive)
    rope_theta: float = key(a_number, "rope_theta", "vision_rope_theta", rule=above_zero)
    downsample_ratio: int = key(an_integer, "downsample_ratio", "vision_downsample_ratio", rule=positive)
    max_image_tokens: int = key(an_integer, "max_image_tokens", "vision_max_n_token", rule=positive)
    min_pixels: int = key(an_integer, "min_pixels", "vision_min_pixels", rule=not_negative)
    max_wh_ratio: float | None = key(
        or_none(a_number), "max_wh_ratio", "vision_max_wh_ratio", rule=above_zero, default=None
    )

    def __attrs_post_init__(self) -> None:
        if self.hidden_size % (4 * self.num_heads):
            raise ConfigError(
                f"vision hidden_size must be a multiple of 4 x num_attention_heads ({4 * self.num_heads}) "
                f"for rotary rows and columns, got {self.hidden_size}"
            )


@attrs.frozen(kw_only=True)
class QuantizationConfig:
    """The published storage: e4m3 in 32 x 32 blocks with e8m0 scales, routed experts e2m1.

    Its presence also means that the inputs of quantised linears are rounded to e4m3 per 32 values.
    """

    block_size: tuple[int, int] = (QUANTIZATION_GROUP, QUANTIZATION_GROUP)
    scale_format: str = "ue8m0"
    expert_dtype: str = "fp4"


def _at_most(name: str, value: int, limit_name: str, limit: int) -> None:
    if value > limit:
        raise ConfigError(f"{name} must be at most {limit_name} ({limit}), got {value}")
