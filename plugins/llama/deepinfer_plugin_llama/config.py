"""From a published ``config.json`` to the model's own config. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.config_keys import (
    Scope,
    a_bool,
    a_number,
    an_integer,
    from_one_to,
    key,
    not_negative,
    one_or_more_integers,
    or_none,
    positive,
    warn_unknown,
)

from .families import FAMILIES, Family
from .layer_plan import LayerPlan
from .rope import RopeConfig, read_rope

#: Keys that change nothing at inference, or that another part reads.
_IGNORABLE = frozenset(
    {
        "architectures", "model_type", "transformers_version", "auto_map", "_name_or_path", "initializer_range",
        "use_cache", "attention_dropout", "pretraining_tp", "pad_token_id",
    }
)  # fmt: skip

#: Keys with few values that all these architectures know. Anything else would run and be wrong.
_FIXED: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (None, 1, 1.0),
    "quantization_config": (None,),
    "dtype": (None, "bfloat16", "float16", "float32"),
    "torch_dtype": (None, "bfloat16", "float16", "float32"),
}


@attrs.frozen(kw_only=True)
class LlamaConfig:
    """Everything a dense model of these architectures needs to know, validated."""

    vocab_size: int = key(an_integer, "vocab_size", rule=from_one_to(2**24))
    hidden_size: int = key(an_integer, "hidden_size", rule=positive)
    intermediate_size: int = key(an_integer, "intermediate_size", rule=positive)
    num_layers: int = key(an_integer, "num_hidden_layers")
    num_heads: int = key(an_integer, "num_attention_heads", rule=positive)
    rms_norm_eps: float = key(a_number, "rms_norm_eps", rule=not_negative, default=1e-6)
    mlp_bias: bool = key(a_bool, "mlp_bias", default=False)
    tie_word_embeddings: bool = key(a_bool, "tie_word_embeddings", default=False)
    bos_token_id: int | None = key(or_none(an_integer), "bos_token_id", default=None)
    eos_token_ids: tuple[int, ...] = key(one_or_more_integers, "eos_token_id", default=())
    """As ``config.json`` has them; ``generation_config.json`` may add more."""

    num_kv_heads: int
    head_dim: int
    query_bias: bool
    """Biases of the query, key and value projections."""
    output_bias: bool
    """Bias of attention's output projection."""
    max_position_embeddings: int
    rope: RopeConfig
    plan: LayerPlan

    def __attrs_post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_key_value_heads must divide num_attention_heads ({self.num_heads}), got {self.num_kv_heads}"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ConfigError(f"head_dim must be even and at least 2, got {self.head_dim}")
        for token in self.eos_token_ids:
            if not 0 <= token < self.vocab_size:
                raise ConfigError(f"eos_token_id must be below vocab_size ({self.vocab_size}), got {token}")

    @property
    def softmax_scale(self) -> float:
        """``head_dim ** -0.5``."""
        return float(self.head_dim**-0.5)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Translate a parsed ``config.json``. What it leaves out is as transformers has it.

        Unknown keys are logged as one warning. Raises ConfigError naming the key, its value and the rule.
        """
        scope = Scope(("", config))
        family = _family(config)
        for name, allowed in {**_FIXED, **family.fixed}.items():
            scope.require(name, *allowed)
        own = scope.values(cls)
        heads = own["num_heads"]
        kv_heads = scope.get(or_none(an_integer), "num_key_value_heads", default=None)
        attention_bias = bool(scope.get(or_none(a_bool), "attention_bias", default=None))
        max_position = scope.get(an_integer, "max_position_embeddings")
        if max_position < 1:
            raise ConfigError(f"max_position_embeddings must be at least 1, got {max_position}")
        rope, max_position = read_rope(scope, max_position)
        result = cls(
            **own,
            num_kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=_head_dim(scope, own["hidden_size"], heads),
            query_bias=attention_bias if family.query_bias is None else family.query_bias,
            output_bias=attention_bias and family.query_bias is None,
            max_position_embeddings=max_position,
            rope=rope,
            plan=LayerPlan.read(scope, family, own["num_layers"]),
        )
        warn_unknown(scope.unknown(_IGNORABLE))
        return result


def _family(config: Mapping[str, Any]) -> Family:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in FAMILIES:
        raise ConfigError(f"architectures must be a list with one of {', '.join(FAMILIES)}, got {names!r}")
    return FAMILIES[names[0]]


def _head_dim(scope: Scope, hidden_size: int, num_heads: int) -> int:
    given = scope.get(or_none(an_integer), "head_dim", default=None)
    if given is None and (num_heads < 1 or hidden_size % num_heads):
        raise ConfigError(
            f"hidden_size must be a multiple of num_attention_heads ({num_heads}) when there is no head_dim, "
            f"got {hidden_size}"
        )
    return hidden_size // num_heads if given is None else given
