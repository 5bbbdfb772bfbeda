"""The configuration of every plugin, out of all layers, and who has taken his part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from deepinfer_core.errors import ConfigError, PluginError, nearest
from deepinfer_core.plugins.typed_config import build_config

if TYPE_CHECKING:
    from deepinfer_core.plugins.settings import Layer

#: A key of every observer: whether its failures stop the engine (``stop``, the default) or are logged (``warn``).
ON_ERROR: Final = "on_error"


class Configuration:
    """Tables of keys by ``plugin`` or ``plugin/component``, in layers of falling precedence."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._taken: set[str] = set()

    def build(self, config_class: type, plugin: str, component: str) -> Any:
        """The object that a component is called with. Raises ConfigError, or what its class raises."""
        self._taken |= {plugin, f"{plugin}/{component}"}
        tables = []
        for table in self._tables(plugin, component):
            if isinstance(table, config_class):
                return table  # made in Python, whole
            if not isinstance(table, Mapping):
                raise ConfigError(f"the configuration must be a {config_class.__name__} or a table, got {table!r}")
            tables.append({key: value for key, value in table.items() if key != ON_ERROR})
        return build_config(config_class, tables)

    def is_tolerated(self, plugin: str) -> bool:
        """Whether failures of an observer are only logged. Raises PluginError for another value."""
        for table in self._tables(plugin):
            if isinstance(table, Mapping) and ON_ERROR in table:
                if table[ON_ERROR] not in ("stop", "warn"):
                    raise PluginError(f"{plugin}.{ON_ERROR} must be 'stop' or 'warn', got {table[ON_ERROR]!r}")
                return bool(table[ON_ERROR] == "warn")
        return False

    def check_names(self, components: Mapping[str, Iterable[str]]) -> None:
        """Raise PluginError for the configuration of a plugin, or of a component, that nobody has."""
        known = [*components, *(f"{plugin}/{name}" for plugin, names in components.items() for name in names)]
        for layer in self._layers:
            for name in layer.config:
                if name not in known:
                    raise PluginError(
                        f"plugin_config names {name!r} ({layer.where}), which is not installed{nearest(name, known)} "
                        f"(installed: {', '.join(components)})"
                    )

    def check_taken(self, loaded: Mapping[str, bool]) -> None:
        """Raise PluginError for configuration without effect.

        loaded: of each active plugin, whether all of its components are loaded, so that whoever could have taken
            its part has done so.
        """
        for layer in self._layers:
            for name, table in layer.config.items():
                plugin = name.partition("/")[0]
                keys = sorted(set(table) - {ON_ERROR}) if isinstance(table, Mapping) else ["an object"]
                if plugin not in loaded and layer.source == "argument":
                    raise PluginError(f"plugin_config names {name!r}, which is not active; name it in plugins=[...]")
                if loaded.get(plugin) and name not in self._taken and keys:
                    raise PluginError(
                        f"plugin {plugin!r} takes no configuration, got {', '.join(keys)} ({layer.where})"
                    )

    def frozen(self) -> tuple[Layer, ...]:
        """The layers without what they select, as plain data: what a worker needs of them."""
        return tuple(
            attrs.evolve(layer, plugins=(), disabled=(), config={k: _plain(v) for k, v in layer.config.items()})
            for layer in self._layers
        )

    def _tables(self, plugin: str, component: str | None = None) -> list[Any]:
        names = [plugin] if component is None else [f"{plugin}/{component}", plugin]
        return [layer.config[name] for layer in self._layers for name in names if name in layer.config]


def _plain(table: Any) -> Mapping[str, Any]:
    # Whoever unpickles an object of a plugin's class imports the plugin before it is confirmed.
    if isinstance(table, Mapping):
        return table
    return {field.alias or field.name: getattr(table, field.name) for field in attrs.fields(type(table)) if field.init}
