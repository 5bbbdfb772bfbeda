"""What the drafter needs to know, taken from the config of the model it drafts for. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_kernels.modules import AttentionSettings, HyperConnectionSettings, RopeSettings


@attrs.frozen(kw_only=True)
class DraftExperts:
    """The stages' experts: fewer than the model's, otherwise alike."""

    num_routed_experts: int
    num_experts_per_token: int
    intermediate_size: int
    route_scale: float
    normalize: bool
    swiglu_limit: float


@attrs.frozen(kw_only=True)
class DrafterConfig:
    """``num_stages`` window-only blocks over ``block_size`` positions: the newest token and noise.

    feature_layers: layers of the model whose inputs the stages' keys are made from.
    """

    vocab_size: int
    hidden_size: int
    rms_norm_eps: float
    rope: RopeSettings
    attention: AttentionSettings
    moe: DraftExperts
    hyper_connection: HyperConnectionSettings
    quantization: object | None
    num_stages: int
    block_size: int
    noise_token_id: int
    feature_layers: tuple[int, ...]
    markov_rank: int

    @classmethod
    def of(cls, config: Any) -> DrafterConfig:
        """From a DeepSeek-V4.1 config. Raises ConfigError if it has no drafter."""
        dspark = getattr(config, "dspark", None)
        if dspark is None:
            raise ConfigError(
                "dflash drafts with the stages of a checkpoint, but its config.json has none "
                "(num_nextn_predict_layers); leave the plugin out"
            )
        moe = config.moe
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            rms_norm_eps=config.rms_norm_eps,
            rope=config.rope_window,
            attention=config.attention,
            moe=DraftExperts(
                num_routed_experts=dspark.num_routed_experts,
                num_experts_per_token=dspark.num_experts_per_token,
                intermediate_size=moe.intermediate_size,
                route_scale=moe.route_scale,
                normalize=moe.normalize,
                swiglu_limit=moe.swiglu_limit,
            ),
            hyper_connection=config.hyper_connection,
            quantization=config.quantization,
            num_stages=dspark.num_stages,
            block_size=dspark.block_size,
            noise_token_id=dspark.noise_token_id,
            feature_layers=dspark.target_layer_ids,
            markov_rank=dspark.markov_rank,
        )
