"""Rotary settings: one meaning for every spelling that published configs use.

Accepted: ``rope_scaling`` with ``type`` or ``rope_type``; ``rope_parameters``, either one table or the two
tables ``main`` and ``compress``; and the reference model's flat keys. Without an original length it is
``max_position_embeddings / factor``; without a maximum it is ``original * factor``. Any kind but ``default``
and ``yarn``, and any setting we would have to drop, is refused: a scaling that is silently ignored makes
long positions drift.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.config_keys import Scope, a_number, an_integer
from deepinfer_core.model_loader.rope_table import (
    NO_TABLE,
    TABLE_NAMES,
    RopeTable,
    YarnConfig,
    a_table,
    base_frequency,
    parse_table,
    reconcile,
    refuse_unknown,
)

_KINDS = {"yarn": ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings"), "default": ()}


@attrs.frozen
class RopeConfig:
    """Rotary embedding of one kind of layer: base ``theta`` and optional YaRN."""

    theta: float
    yarn: YarnConfig | None

    def __attrs_post_init__(self) -> None:
        if not self.theta > 1:
            raise ConfigError(f"rope_theta and compress_rope_theta must be greater than 1, got {self.theta}")


@attrs.frozen
class RopeSettings:
    """What a config says about positions: both rotary tables and the longest position."""

    window: RopeConfig
    compressed: RopeConfig
    max_position: int


def read_rope(scope: Scope, rotary_fraction: float) -> RopeSettings:
    """Rotary settings of ``scope``. ``rotary_fraction`` is rotary dims / head dims."""
    window, compressed = _tables(scope, rotary_fraction)
    max_position = scope.get(an_integer, "max_position_embeddings", "max_seq_len", default=None)
    if window.kind != "default":
        raise ConfigError(f"rope_parameters.main.rope_type must be 'default', got {window.kind!r}")
    yarn = None
    if compressed.kind == "yarn":
        yarn, max_position = _yarn(compressed.numbers, max_position)
    if max_position is None:
        raise ConfigError("config has no max_position_embeddings; it is required when there is no YaRN scaling")
    if max_position < 1:
        raise ConfigError(f"max_position_embeddings must be at least 1, got {max_position}")
    return RopeSettings(
        window=RopeConfig(base_frequency(scope, "rope_theta", window.theta), None),
        compressed=RopeConfig(base_frequency(scope, "compress_rope_theta", compressed.theta), yarn),
        max_position=max_position,
    )


def _tables(scope: Scope, rotary_fraction: float) -> tuple[RopeTable, RopeTable]:
    """The window and the compressed layers' tables, all spellings reconciled."""
    fixed = {"attention_factor": (None, 1, 1.0), "partial_rotary_factor": (None, rotary_fraction), "truncate": (True,)}
    given: list[tuple[str, RopeTable, RopeTable]] = []
    for name in TABLE_NAMES:
        if not scope.has(name):
            continue
        tables = scope.get(a_table, name)
        if "main" in tables or "compress" in tables:
            refuse_unknown(name, tables, ("main", "compress"))
            nested = Scope((f"{name}.", tables))
            window, compressed = (
                parse_table(f"{name}.{part}", nested.get(a_table, part, default={}), _KINDS, fixed)
                for part in ("main", "compress")
            )
            given.append((name, window, compressed))
        else:
            table = parse_table(name, tables, _KINDS, fixed)
            # One table for both kinds of layer: its base is the window's, its scaling the compressed layers'.
            given.append((name, RopeTable("default", table.theta, {}), attrs.evolve(table, theta=None)))
    if scope.has("rope_factor"):
        given.append(("rope_factor", NO_TABLE, _flat(scope)))
    return (
        reconcile([(name, window) for name, window, _ in given]),
        reconcile([(name, compressed) for name, _, compressed in given]),
    )


def _flat(scope: Scope) -> RopeTable:
    """The reference model's flat keys; an original length of 0 turns scaling off there."""
    names = {
        "factor": "rope_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "original_max_position_embeddings": "original_seq_len",
    }
    numbers = {to: scope.get(a_number, name) for to, name in names.items() if scope.has(name)}
    if numbers.get("original_max_position_embeddings") == 0:
        return NO_TABLE
    return RopeTable("yarn", None, numbers)


def _yarn(numbers: Mapping[str, float], max_position: int | None) -> tuple[YarnConfig, int]:
    """YaRN settings and the longest position, each of which may give the other."""
    if "factor" not in numbers:
        raise ConfigError("rope_scaling of kind 'yarn' needs a factor")
    settings = dict(numbers)
    original = settings.pop("original_max_position_embeddings", None)
    if original is None:
        if max_position is None:
            raise ConfigError("YaRN needs original_max_position_embeddings or max_position_embeddings; both are absent")
        original = max_position / settings["factor"] if settings["factor"] else 0
    if original != int(original):
        raise ConfigError(
            f"rope_scaling.original_max_position_embeddings must be an integer, got {original} "
            "(when omitted it is max_position_embeddings / factor)"
        )
    yarn = YarnConfig(original_max_position=int(original), **settings)
    return yarn, int(original * yarn.factor) if max_position is None else max_position
