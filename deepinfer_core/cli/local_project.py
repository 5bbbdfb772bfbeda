"""A plugin's source folder, made visible to the plugin system without installing it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins.discovery import GROUP


@attrs.frozen
class LocalProject:
    """plugins: names of its entry points. paths: folders that go in front of ``sys.path``."""

    plugins: tuple[str, ...]
    paths: tuple[str, ...]


def open_project(folder: Path, site: Path) -> LocalProject:
    """Write what an installer would leave of the project in ``folder`` to the empty folder ``site``.

    Raises ConfigError for a folder that holds no plugin's project.
    """
    project = _read(folder / "pyproject.toml")
    points = project.get("entry-points", {}).get(GROUP, {})
    name = project.get("name")
    if not isinstance(name, str) or not isinstance(points, dict) or not points:
        raise ConfigError(f'{folder}/pyproject.toml must have a name and [project.entry-points."{GROUP}"]')
    parents = [_parent_of(folder, str(package)) for package in points.values()]
    info = site / f"{name.replace('-', '_')}-{project.get('version', '0')}.dist-info"
    info.mkdir()
    version = project.get("version", "0")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{point} = {package}" for point, package in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    return LocalProject(tuple(points), (str(site), *dict.fromkeys(map(str, parents))))


def _read(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; name a plugin, or the folder of its project"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    project = table.get("project")
    return project if isinstance(project, dict) else {}


def _parent_of(folder: Path, package: str) -> Path:
    for parent in (folder, folder / "src"):
        if (parent / package / "__init__.py").is_file():
            return parent.resolve()
    raise ConfigError(
        f"{folder} has no package {package!r}, neither at the top nor in src, though its entry point says so"
    )
