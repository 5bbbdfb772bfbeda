"""Rotary settings: the kinds of scaling that these architectures are published with. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.config_keys import Scope, a_number, above_zero, an_integer, key, positive
from deepinfer_core.model_loader.rope_table import (
    TABLE_NAMES,
    RopeTable,
    YarnConfig,
    a_table,
    base_frequency,
    parse_table,
    reconcile,
)

_ORIGINAL = "original_max_position_embeddings"
_MAGNITUDES = ("attention_factor", "mscale", "mscale_all_dim")
_KINDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": ("factor", "beta_fast", "beta_slow", _ORIGINAL, *_MAGNITUDES),
}
_FIXED = {"partial_rotary_factor": (None, 1, 1.0), "truncate": (True,), "finetuned": (None, True, False)}
#: What transformers assumes where a config does not say.
_DEFAULT_THETA = 10000.0


@attrs.frozen
class Llama3Config:
    """Slow pairs turn ``factor`` times slower, fast ones as they are, those in between by degrees (Llama 3.1).

    A pair is slow if it turns less than ``low_freq_factor`` times over the original length, fast from
    ``high_freq_factor`` times on.
    """

    factor: float = key(a_number, "rope_scaling.factor", rule=positive)
    low_freq_factor: float = key(a_number, "rope_scaling.low_freq_factor", rule=above_zero)
    high_freq_factor: float = key(a_number, "rope_scaling.high_freq_factor", rule=above_zero)
    original_max_position: int = key(an_integer, f"rope_scaling.{_ORIGINAL}", rule=positive)

    def __attrs_post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"rope_scaling.high_freq_factor must exceed low_freq_factor, got {self.high_freq_factor} and "
                f"{self.low_freq_factor}"
            )


@attrs.frozen
class RopeConfig:
    """Rotary embedding of base ``theta``, with at most one scaling.

    linear: positions are divided by it. magnitude: cosines and sines are multiplied by it.
    """

    theta: float
    linear: float | None = key(a_number, "rope_scaling.factor", rule=positive, default=None)
    llama3: Llama3Config | None = None
    yarn: YarnConfig | None = None
    magnitude: float = key(a_number, "rope_scaling.attention_factor", rule=above_zero, default=1.0)

    def __attrs_post_init__(self) -> None:
        if not self.theta > 1:
            raise ConfigError(f"rope_theta must be greater than 1, got {self.theta}")


def read_rope(scope: Scope, max_position: int) -> tuple[RopeConfig, int]:
    """Rotary settings, and the longest position they allow.

    ``max_position`` is the config's ``max_position_embeddings``. It is the original length where a table leaves that
    out; YaRN reaches ``factor`` times the original length.
    """
    table = _table(scope)
    theta = base_frequency(scope, "rope_theta", table.theta, _DEFAULT_THETA)
    if table.kind == "default":
        return RopeConfig(theta), max_position
    if "factor" not in table.numbers:
        raise ConfigError(f"rope_scaling of kind {table.kind!r} needs a factor")
    if table.kind == "linear":
        return RopeConfig(theta, linear=table.numbers["factor"]), max_position
    numbers = {name: value for name, value in table.numbers.items() if name not in _MAGNITUDES}
    original = numbers.pop(_ORIGINAL, max_position)
    if original != int(original):
        raise ConfigError(f"rope_scaling.{_ORIGINAL} must be an integer, got {original}")
    if table.kind == "llama3":
        missing = [name for name in ("low_freq_factor", "high_freq_factor") if name not in numbers]
        if missing:
            raise ConfigError(f"rope_scaling of kind 'llama3' needs {' and '.join(missing)}")
        return RopeConfig(theta, llama3=Llama3Config(original_max_position=int(original), **numbers)), max_position
    yarn = YarnConfig(original_max_position=int(original), **numbers)
    rope = RopeConfig(theta, yarn=yarn, magnitude=_magnitude(table.numbers))
    return rope, max(max_position, int(yarn.factor * yarn.original_max_position))


def _table(scope: Scope) -> RopeTable:
    names = [name for name in TABLE_NAMES if scope.has(name)]
    return reconcile([(name, parse_table(name, scope.get(a_table, name), _KINDS, _FIXED)) for name in names])


def _magnitude(numbers: Mapping[str, float]) -> float:
    """YaRN's attention temperature (arXiv:2309.00071, eq. 22), or what the table says instead."""
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    growth = math.log(max(numbers["factor"], 1.0))
    if numbers.get("mscale") and numbers.get("mscale_all_dim"):
        return (0.1 * numbers["mscale"] * growth + 1.0) / (0.1 * numbers["mscale_all_dim"] * growth + 1.0)
    return 0.1 * growth + 1.0
