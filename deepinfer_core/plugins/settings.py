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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from deepinfer_core import envs
from deepinfer_core.errors import ConfigError, nearest
from deepinfer_core.plugins.failure import Source

FILE_KEYS: Final = ("plugins", "disabled", "plugin_config")

#: Configuration by plugin (or ``plugin/component``), then by key; or an object of the component's config class.
PluginConfig = Mapping[str, Any]


@frozen(kw_only=True)
class Layer:
    """What one source says; where several speak, the first wins: key by key, and seam by seam.

    where: the source as a person would name it.
    """

    source: Source
    where: str
    plugins: Sequence[object] = ()
    disabled: Sequence[str] = ()
    config: PluginConfig = field(factory=dict)


def read_layers(config_file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[Layer, ...]:
    """The layers of the file and the environment. Raises ConfigError for what cannot be understood.

    environ: in place of the process's own; the user's configuration folder does not count then.
    """
    layers = []
    path = find_file(config_file, environ)
    if path is not None:
        layers.append(read_file(path))
    layers.append(
        Layer(
            source="environment",
            where="DEEPINFER_PLUGINS",
            plugins=envs.read("DEEPINFER_PLUGINS", environ),
            config=envs.read("DEEPINFER_PLUGIN_CONFIG", environ),
        )
    )
    return tuple(layers)


def find_file(config_file: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that is read; None when nobody named one and the user's own does not exist."""
    named = config_file or envs.read("DEEPINFER_CONFIG", environ)
    if named:
        return Path(named)
    default = user_file() if environ is None else None
    return default if default is not None and default.exists() else None


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
    for key in data:
        if key not in FILE_KEYS:
            known = ", ".join(FILE_KEYS)
            raise ConfigError(
                f"configuration file {path}: unknown key {key!r}{nearest(key, FILE_KEYS)} (known: {known})"
            )
    try:
        return Layer(
            source="file",
            where=os.fspath(path),
            plugins=_names("plugins", data.get("plugins", [])),
            disabled=_names("disabled", data.get("disabled", [])),
            config=check_config(data.get("plugin_config", {})),
        )
    except ConfigError as error:
        raise ConfigError(f"configuration file {path}: {error}") from None


def check_config(value: object) -> dict[str, Any]:
    """Configuration by plugin as a plain dict. Raises ConfigError for another shape."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"plugin_config must be a table by plugin, got {value!r}")
    for name, table in value.items():
        is_object = hasattr(type(table), "__attrs_attrs__")
        if not isinstance(name, str) or not (is_object or isinstance(table, Mapping)):
            raise ConfigError(f"plugin_config[{name!r}] must be a table of keys, got {table!r}")
    return dict(value)


def _names(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{key} must be a list of plugin names, got {value!r}")
    return tuple(value)
