"""The layer plan: how far back each layer's attention sees."""

from __future__ import annotations

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.config_keys import Scope, a_bool, an_integer, or_none

from .families import Family

_MOST_LAYERS = 2**16
_FULL, _SLIDING = "full_attention", "sliding_attention"


@attrs.frozen
class LayerSpec:
    """One layer. ``window_size`` positions are visible to a row, its own included; None: all up to its own."""

    index: int
    window_size: int | None


@attrs.frozen
class LayerPlan:
    """All layers, in order."""

    layers: tuple[LayerSpec, ...]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """``(headers, rows)`` for printing."""
        rows = [(str(layer.index), "full" if layer.window_size is None else "window") for layer in self.layers]
        windows = ["-" if layer.window_size is None else str(layer.window_size) for layer in self.layers]
        return ("layer", "attention", "window"), [(*row, window) for row, window in zip(rows, windows, strict=True)]

    @classmethod
    def read(cls, scope: Scope, family: Family, num_layers: int) -> LayerPlan:
        """From ``layer_types``, or from the keys of sliding windows. Raises ConfigError."""
        # Before they are enumerated: a mistyped number is refused, not waited for.
        if not 1 <= num_layers <= _MOST_LAYERS:
            raise ConfigError(f"num_hidden_layers must be from 1 to {_MOST_LAYERS}, got {num_layers}")
        size = _window_size(scope, family)
        first = scope.get(or_none(an_integer), "max_window_layers", default=None)
        first = family.first_window_layer if first is None else first
        kinds = scope.get(or_none(_kinds), "layer_types", default=None)
        if kinds is None:
            kinds = tuple(_FULL if size is None or index < first else _SLIDING for index in range(num_layers))
        if len(kinds) != num_layers:
            raise ConfigError(f"layer_types must have num_hidden_layers ({num_layers}) entries, got {len(kinds)}")
        if size is None and _SLIDING in kinds:
            raise ConfigError(
                f"layer_types has {_SLIDING!r} but there is no sliding window; set sliding_window (and, where it "
                "exists, use_sliding_window)"
            )
        return cls(tuple(LayerSpec(i, size if kind == _SLIDING else None) for i, kind in enumerate(kinds)))


def _window_size(scope: Scope, family: Family) -> int | None:
    size = scope.get(or_none(an_integer), "sliding_window", default=family.window_size)
    uses_window = scope.get(or_none(a_bool), "use_sliding_window", default=None)
    if not (family.uses_window if uses_window is None else uses_window):
        return None
    if size is not None and size < 1:
        raise ConfigError(f"sliding_window must be at least 1 or null, got {size}")
    return size


def _kinds(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(kind in (_FULL, _SLIDING) for kind in value):
        return tuple(value)
    raise TypeError(f"a list of {_FULL!r} and {_SLIDING!r}")
