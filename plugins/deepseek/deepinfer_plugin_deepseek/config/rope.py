"""Rotary settings: one meaning for every spelling that published configs use.

Accepted: ``rope_scaling`` with ``type`` or ``rope_type``; ``rope_parameters``, either one table or the two
tables ``main`` and ``compress``; and the reference model's flat keys. Without an original length it is
``max_position_embeddings / factor``; without a maximum it is ``original * factor``. Any kind but ``default``
and ``yarn``, and any setting we would have to drop, is refused: a scaling that is silently ignored makes
long positions drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError, nearest

from .keys import Scope, a_number, above_zero, an_integer, key, positive

_TABLE_KEYS = (
    "type", "rope_type", "rope_theta", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings",
    "attention_factor", "partial_rotary_factor", "truncate",
)  # fmt: skip


@attrs.frozen
class YarnConfig:
    """YaRN frequency scaling (arXiv:2309.00071), without its magnitude scale."""

    factor: float = key(a_number, "rope_scaling.factor", rule=positive)
    original_max_position: int = key(an_integer, "rope_scaling.original_max_position_embeddings", rule=positive)
    beta_fast: float = key(a_number, "rope_scaling.beta_fast", rule=above_zero, default=32.0)
    beta_slow: float = key(a_number, "rope_scaling.beta_slow", rule=above_zero, default=1.0)

    def __attrs_post_init__(self) -> None:
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"rope_scaling.beta_fast must exceed beta_slow, got {self.beta_fast} and {self.beta_slow}"
            )


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


@attrs.frozen
class _Table:
    """One ``rope_scaling``-like table; absent settings are None."""

    kind: str
    theta: float | None
    numbers: Mapping[str, float]


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
        window=RopeConfig(_theta(scope, "rope_theta", window.theta), None),
        compressed=RopeConfig(_theta(scope, "compress_rope_theta", compressed.theta), yarn),
        max_position=max_position,
    )


def _tables(scope: Scope, rotary_fraction: float) -> tuple[_Table, _Table]:
    """The window and the compressed layers' tables, all spellings reconciled."""
    no_table = _Table("default", None, {})
    given: list[tuple[str, _Table, _Table]] = []
    for name in ("rope_scaling", "rope_parameters"):
        if not scope.has(name):
            continue
        tables = scope.get(_a_table, name)
        if "main" in tables or "compress" in tables:
            _refuse_unknown(name, tables, ("main", "compress"))
            parts = [
                _parse(f"{name}.{part}", _a_table(tables[part]), rotary_fraction) if part in tables else no_table
                for part in ("main", "compress")
            ]
            given.append((name, parts[0], parts[1]))
        else:
            table = _parse(name, tables, rotary_fraction)
            # One table for both kinds of layer: its base is the window's, its scaling the compressed layers'.
            given.append((name, _Table("default", table.theta, {}), attrs.evolve(table, theta=None)))
    if scope.has("rope_factor"):
        given.append(("rope_factor", no_table, _flat(scope)))
    for name, window, compressed in given[1:]:
        if (window.kind, compressed.kind, compressed.numbers) != (
            given[0][1].kind, given[0][2].kind, given[0][2].numbers
        ):  # fmt: skip
            raise ConfigError(f"config contradicts itself: {given[0][0]} and {name} give different scalings; keep one")
    return (given[0][1], given[0][2]) if given else (no_table, no_table)


def _a_table(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise TypeError("a table")


def _refuse_unknown(name: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key_ in table:
        if key_ not in known:
            raise ConfigError(
                f"{name}.{key_} is not a setting we know{nearest(key_, known)}; it cannot be ignored, because "
                f"positions would drift without a word. Known: {', '.join(known)}"
            )


def _parse(name: str, table: Mapping[str, Any], rotary_fraction: float) -> _Table:
    _refuse_unknown(name, table, _TABLE_KEYS)
    scope = Scope((f"{name}.", table))
    kind = scope.find("rope_type", "type")[1] if table else "default"
    if kind not in ("default", "yarn"):
        shown = repr(kind) if isinstance(kind, str) else "none"
        raise ConfigError(f"{name} must have rope_type (or type) 'yarn' or 'default', got {shown}")
    scope.require("attention_factor", None, 1, 1.0)
    scope.require("partial_rotary_factor", None, rotary_fraction)
    scope.require("truncate", True)
    theta = scope.get(a_number, "rope_theta", default=None)
    names = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
    numbers = {n: scope.get(a_number, n) for n in names if table.get(n) is not None} if kind == "yarn" else {}
    return _Table(kind, theta, numbers)


def _flat(scope: Scope) -> _Table:
    """The reference model's flat keys; an original length of 0 turns scaling off there."""
    names = {
        "factor": "rope_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "original_max_position_embeddings": "original_seq_len",
    }
    numbers = {to: scope.get(a_number, name) for to, name in names.items() if scope.has(name)}
    if numbers.get("original_max_position_embeddings") == 0:
        return _Table("default", None, {})
    return _Table("yarn", None, numbers)


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


def _theta(scope: Scope, name: str, from_table: float | None) -> float:
    value = scope.get(a_number, name, default=from_table)
    if value is None:
        raise ConfigError(f"config has no {name}; it is required, at the top of the text part or in rope_parameters")
    if from_table is not None and value != from_table:
        raise ConfigError(f"config contradicts itself: {name} is {value} but its rope table says {from_table}")
    return value
