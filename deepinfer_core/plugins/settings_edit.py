"""Switch plugins on and off in the configuration file; everything else in it, comments included, stays."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.errors import ConfigError, DeepInferError, PluginError
from deepinfer_core.plugins.discovery import BUILTIN, PluginRecord, discover
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.selection import unknown_plugin
from deepinfer_core.plugins.settings import find_file, user_file

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def enable(name: str, config_file: str | None = None) -> Path:
    """Select a plugin in the file, which is returned. Raises PluginError if no engine could start with it."""
    record = _find(name)
    if record is None:
        raise unknown_plugin(name, discover())
    if record.state != "available":
        raise PluginError(f"plugin {record.owner} cannot be enabled: it is {record.state}: {record.reason}")
    path = _target(config_file)
    document = _read(path)
    _change(document, "disabled", name, keep=False)
    _change(document, "plugins", name, keep=name != BUILTIN)
    _write(path, document, check=True)
    return path


def disable(name: str, config_file: str | None = None) -> Path:
    """Keep a plugin from being used unless an argument names it. Returns the file."""
    path = _target(config_file)
    document = _read(path)
    if name == BUILTIN:
        raise PluginError(f"the built-in plugin {BUILTIN!r} cannot be disabled; select a plugin that fills its seam")
    if _find(name) is None and name not in document.get("plugins", ()):
        raise unknown_plugin(name, discover())
    _change(document, "plugins", name, keep=False)
    _change(document, "disabled", name, keep=True)
    _write(path, document, check=False)
    return path


def _find(name: str) -> PluginRecord | None:
    return next((record for record in discover() if record.name == name), None)


def _target(config_file: str | None) -> Path:
    return find_file(config_file) or user_file()


def _read(path: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not UTF-8 TOML: {error}; correct or remove it") from error
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror or error}") from error


def _change(document: TOMLDocument, key: str, name: str, *, keep: bool) -> None:
    """Make sure that the list ``key`` has ``name``, or has it not."""
    found = document.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"{key} must be a list of plugin names, got {found!r}; correct the configuration file")
    if keep and name not in found:
        if found:
            found.append(name)
        else:
            document[key] = [name]
    while not keep and name in found:
        found.remove(name)


def _write(path: Path, document: TOMLDocument, *, check: bool) -> None:
    """Replace the file at once, so that no reader ever sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=".deepinfer-", suffix=".toml")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(document.as_string())
            if check:
                _check(draft, path)
            os.chmod(draft, target.stat().st_mode if target.exists() else 0o644)
            os.replace(draft, target)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be written: {error.strerror or error}") from error


def _check(draft: str, path: Path) -> None:
    try:
        PluginManager(config_file=draft)
    except DeepInferError as error:
        raise type(error)(str(error).replace(draft, str(path))) from error
