"""Tables of rotary settings, such as ``rope_scaling``, under every spelling that published configs use.

Any kind and any setting that a model does not implement is refused: a scaling that is silently ignored makes
long positions drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError, nearest
from deepinfer_core.model_loader.config_keys import Scope, a_number, above_zero, an_integer, key, positive

#: Where a config may have its table: the older and the newer spelling.
TABLE_NAMES = ("rope_scaling", "rope_parameters")


@attrs.frozen
class RopeTable:
    """One table.

    theta: the base, None where it is elsewhere. numbers: settings of its kind; absent ones are left out.
    """

    kind: str
    theta: float | None
    numbers: Mapping[str, float]


#: No table at all.
NO_TABLE = RopeTable("default", None, {})


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


def a_table(value: object) -> Mapping[str, Any]:
    """A JSON object."""
    if isinstance(value, Mapping):
        return value
    raise TypeError("a table")


def refuse_unknown(name: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ConfigError for a key of the table ``name`` that is not ``known``."""
    for setting in table:
        if setting not in known:
            raise ConfigError(
                f"{name}.{setting} is not a setting we know{nearest(setting, known)}; it cannot be ignored, because "
                f"positions would drift without a word. Known: {', '.join(known)}"
            )


def parse_table(
    name: str, table: Mapping[str, Any], kinds: Mapping[str, Sequence[str]], fixed: Mapping[str, Sequence[object]]
) -> RopeTable:
    """The table ``name``, its kind under ``rope_type`` or ``type``; an empty one is ``default``.

    kinds: the kinds that a model implements, and the numbers each may have. fixed: settings that are no numbers, or
    have one meaning only, and the values they may have. Raises ConfigError naming the setting.
    """
    numbers = dict.fromkeys(number for names in kinds.values() for number in names)
    refuse_unknown(name, table, ("type", "rope_type", "rope_theta", *numbers, *fixed))
    scope = Scope((f"{name}.", table))
    kind = scope.find("rope_type", "type")[1] if table else "default"
    if not isinstance(kind, str) or kind not in kinds:
        options = " or ".join(repr(option) for option in kinds)
        shown = repr(kind) if isinstance(kind, str) else "none"
        raise ConfigError(f"{name} must have rope_type (or type) {options}, got {shown}")
    for setting, allowed in fixed.items():
        scope.require(setting, *allowed)
    theta = scope.get(a_number, "rope_theta", default=None)
    given = {number: scope.get(a_number, number) for number in kinds[kind] if table.get(number) is not None}
    return RopeTable(kind, theta, given)


def reconcile(tables: Sequence[tuple[str, RopeTable]]) -> RopeTable:
    """The one meaning of the tables ``(name, table)`` that a config has; ConfigError when they differ."""
    result = tables[0][1] if tables else NO_TABLE
    for name, table in tables[1:]:
        if (table.kind, table.numbers) != (result.kind, result.numbers):
            raise ConfigError(f"config contradicts itself: {tables[0][0]} and {name} give different scalings; keep one")
        if None not in (table.theta, result.theta) and table.theta != result.theta:
            raise ConfigError(
                f"config contradicts itself: rope_theta is {result.theta} and, in {name}, {table.theta}; keep one"
            )
        result = attrs.evolve(result, theta=table.theta if result.theta is None else result.theta)
    return result


def base_frequency(scope: Scope, name: str, from_table: float | None, default: float | None = None) -> float:
    """The rotary base under ``name`` or in its table, else ``default``; ConfigError when they differ or all lack."""
    value = scope.get(a_number, name, default=from_table if from_table is not None else default)
    if value is None:
        raise ConfigError(f"config has no {name}; it is required, at the top of the text part or in rope_parameters")
    if from_table is not None and value != from_table:
        raise ConfigError(f"config contradicts itself: {name} is {value} but its rope table says {from_table}")
    return value
