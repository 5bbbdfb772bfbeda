"""What is said of plugins, and by whom: Python or the command line, a configuration file, the environment.

The file, TOML, has the same keys as Python and the command line::

    plugins = ["request-logger"]       # active wherever they are installed
    disabled = ["sm100"]               # never active unless named by an argument

    [plugin_config.request-logger]     # by plugin, or "plugin/component"
    path = "requests.jsonl"

It is ``config=`` or ``--config``, else ``DEEPINFER_CONFIG``, else ``config.toml`` in the user's configuration
folder (``~/.config/deepinfer`` on Linux), if it exists.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from deepinfer_core import envs
from deepinfer_core.errors import ConfigError, PluginError, nearest
from deepinfer_core.plugins.failure import Source
from deepinfer_core.plugins.typed_config import build_config

FILE_KEYS: Final = ("plugins", "disabled", "plugin_config")

#: A key of every observer: whether its failures stop the engine (``stop``, the default) or are logged (``warn``).
ON_ERROR: Final = "on_error"

#: Configuration by plugin (or ``plugin/component``), then by key; or an object of the component's config class.
PluginConfig = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Layer:
    """What one source says; where several speak, the first wins: key by key, and seam by seam.

    where: the source as a person would name it.
    """

    source: Source
    where: str
    plugins: Sequence[object] = ()
    disabled: Sequence[str] = ()
    config: PluginConfig = attrs.field(factory=dict)


def read_layers(config_file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[Layer, ...]:
    """The layers of the file and the environment. Raises ConfigError for what cannot be understood.

    environ: in place of the process's own; the user's configuration folder does not count then.
    """
    path = find_file(config_file, environ)
    environment = Layer(
        source="environment",
        where="DEEPINFER_PLUGINS",
        plugins=envs.read("DEEPINFER_PLUGINS", environ),
        config=envs.read("DEEPINFER_PLUGIN_CONFIG", environ),
    )
    return (environment,) if path is None else (read_file(path), environment)


def find_file(config_file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that is read; None when nobody named one and the user's own does not exist."""
    named = config_file or envs.read("DEEPINFER_CONFIG", environ)
    if named:
        return Path(named)
    return user_file() if environ is None and user_file().exists() else None


def user_file() -> Path:
    """The configuration file of the user, whether or not it exists."""
    import platformdirs

    return platformdirs.user_config_path("deepinfer", appauthor=False) / "config.toml"


def read_file(path: Path) -> Layer:
    """A configuration file's layer. Raises ConfigError naming the file, the key and the rule."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror or error}; correct --config") from error
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not UTF-8 TOML: {error}") from error
    try:
        for key in data:
            if key not in FILE_KEYS:
                raise ConfigError(f"unknown key {key!r}{nearest(key, FILE_KEYS)} (known: {', '.join(FILE_KEYS)})")
        plugins, disabled = (_names(key, data.get(key, [])) for key in ("plugins", "disabled"))
        config = check_config(data.get("plugin_config", {}))
    except ConfigError as error:
        raise ConfigError(f"configuration file {path}: {error}") from None
    return Layer(source="file", where=os.fspath(path), plugins=plugins, disabled=disabled, config=config)


def check_config(value: object) -> dict[str, Any]:
    """Configuration by plugin as a plain dict. Raises ConfigError for another shape."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"plugin_config must be a table by plugin, got {value!r}")
    for name, table in value.items():
        if not isinstance(name, str) or not (attrs.has(type(table)) or isinstance(table, Mapping)):
            raise ConfigError(f"plugin_config[{name!r}] must be a table of keys, got {table!r}")
    return dict(value)


def _names(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{key} must be a list of plugin names, got {value!r}")
    return tuple(value)


class Configuration:
    """Tables of keys by ``plugin`` or ``plugin/component``, in layers of falling precedence; and who took his part."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._taken: set[str] = set()

    def build(self, config_class: type, plugin: str, component: str) -> Any:
        """The object that a component is called with. Raises ConfigError, or what its class raises."""
        self._taken |= {plugin, f"{plugin}/{component}"}
        tables = []
        for table in self._tables(f"{plugin}/{component}", plugin):
            if isinstance(table, config_class):
                return table  # made in Python, whole
            if not isinstance(table, Mapping):
                raise ConfigError(f"the configuration must be a {config_class.__name__} or a table, got {table!r}")
            tables.append({key: value for key, value in table.items() if key != ON_ERROR})
        return build_config(config_class, tables)

    def is_tolerated(self, plugin: str) -> bool:
        """Whether failures of an observer are only logged. Raises PluginError for another value."""
        tables = [table for table in self._tables(plugin) if isinstance(table, Mapping)]
        value = next((table[ON_ERROR] for table in tables if ON_ERROR in table), "stop")
        if value not in ("stop", "warn"):
            raise PluginError(f"{plugin}.{ON_ERROR} must be 'stop' or 'warn', got {value!r}")
        return bool(value == "warn")

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

    def carried(self, plugins: Iterable[str]) -> tuple[Layer, ...]:
        """What the layers say of these plugins, as plain data: what a worker needs of them."""
        kept = set(plugins)
        return tuple(
            attrs.evolve(
                layer,
                plugins=(),
                disabled=(),
                config={key: _plain(table) for key, table in layer.config.items() if key.partition("/")[0] in kept},
            )
            for layer in self._layers
        )

    def _tables(self, *names: str) -> list[Any]:
        return [layer.config[name] for layer in self._layers for name in names if name in layer.config]


def _plain(table: Any) -> Mapping[str, Any]:
    # Whoever unpickles an object of a plugin's class imports the plugin before it is confirmed.
    if isinstance(table, Mapping):
        return table
    return {field.alias or field.name: getattr(table, field.name) for field in attrs.fields(type(table)) if field.init}
