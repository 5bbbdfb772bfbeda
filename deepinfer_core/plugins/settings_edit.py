"""Switch plugins on and off in the configuration file; everything else in it, comments included, stays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.errors import ConfigError, DeepInferError, PluginError
from deepinfer_core.plugins.discovery import BUILTIN, discover
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.selection import unknown_plugin
from deepinfer_core.plugins.settings import find_file, user_file

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def enable(name: str, config_file: str | None = None) -> Path:
    """Select a plugin in the file, which is returned. Raises PluginError if no engine could start with it."""
    record = next((record for record in discover() if record.name == name), None)
    if record is None:
        raise unknown_plugin(name, discover())
    if record.state != "available":
        raise PluginError(f"plugin {record.owner} cannot be enabled: it is {record.state}: {record.reason}")
    with _edited(config_file, check=True) as (path, document):
        _change(document, "disabled", name, keep=False)
        _change(document, "plugins", name, keep=name != BUILTIN)
    return path


def disable(name: str, config_file: str | None = None) -> Path:
    """Keep a plugin from being used unless an argument names it. Returns the file."""
    with _edited(config_file, check=False) as (path, document):
        if name == BUILTIN:
            raise PluginError(
                f"the built-in plugin {BUILTIN!r} cannot be disabled; select a plugin that fills its seam"
            )
        if name not in [*document.get("plugins", ()), *(record.name for record in discover())]:
            raise unknown_plugin(name, discover())
        _change(document, "plugins", name, keep=False)
        _change(document, "disabled", name, keep=True)
    return path


def _change(document: TOMLDocument, key: str, name: str, *, keep: bool) -> None:
    """Make sure that the list ``key`` has ``name``, or has it not."""
    found = document.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"{key} must be a list of plugin names, got {found!r}; correct the configuration file")
    if keep and not found:
        document[key] = [name]
    elif keep and name not in found:
        found.append(name)
    while not keep and name in found:
        found.remove(name)


@contextmanager
def _edited(config_file: str | None, *, check: bool) -> Iterator[tuple[Path, TOMLDocument]]:
    """The file and what is in it, which replaces it at the end, at once: no reader ever sees half of it."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = find_file(config_file) or user_file()
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
        yield path, document
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".deepinfer-") as folder:
            draft = Path(folder, "config.toml")
            draft.write_text(document.as_string(), encoding="utf-8")
            if check:
                _check(draft, path)
            draft.chmod(target.stat().st_mode if target.exists() else 0o644)
            os.replace(draft, target)
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not UTF-8 TOML: {error}; correct or remove it") from error
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be changed: {error.strerror or error}") from error


def _check(draft: Path, path: Path) -> None:
    try:
        PluginManager(config_file=draft)
    except DeepInferError as error:
        raise type(error)(str(error).replace(str(draft), str(path))) from error
