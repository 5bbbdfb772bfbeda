"""Tables of rotary settings, such as ``rope_scaling``, under every spelling that published configs use.

Any kind and any setting that a model does not implement is refused: a scaling that is silently ignored makes
long positions drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError, nearest
from deepinfer_core.model_loader.config_keys import Scope, a_number

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


def a_table(value: object) -> Mapping[str, Any]:
    """A JSON object."""
    if isinstance(value, Mapping):
        return value
    raise TypeError("a table")


def refuse_unknown(name: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ConfigError for a key of the table ``name`` that is not ``known``."""
    for key in table:
        if key not in known:
            raise ConfigError(
                f"{name}.{key} is not a setting we know{nearest(key, known)}; it cannot be ignored, because "
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


def refuse_contradiction(name: str, table: RopeTable, other_name: str, other: RopeTable) -> None:
    """Raise ConfigError when two tables, both in one config, scale differently."""
    if (table.kind, table.numbers) != (other.kind, other.numbers):
        raise ConfigError(f"config contradicts itself: {name} and {other_name} give different scalings; keep one")


def base_frequency(scope: Scope, name: str, from_table: float | None, default: float | None = None) -> float:
    """The rotary base under ``name`` or in its table, else ``default``; ConfigError when they differ or all lack."""
    value = scope.get(a_number, name, default=from_table if from_table is not None else default)
    if value is None:
        raise ConfigError(f"config has no {name}; it is required, at the top of the text part or in rope_parameters")
    if from_table is not None and value != from_table:
        raise ConfigError(f"config contradicts itself: {name} is {value} but its rope table says {from_table}")
    return value
