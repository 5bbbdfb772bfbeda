"""Synthetic plugin distributions, written to a folder as an installer would leave them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins import PluginManager, PluginRow
from deepinfer_core.plugins.loading import protocol_members
from deepinfer_core.plugins.probe import load_object

Install = Callable[..., Path]


def write_distribution(
    site: Path,
    name: str,
    manifest: str | None,
    code: str = "",
    *,
    package: str = "",
    distribution: str = "",
    version: str = "1.0",
) -> None:
    """A distribution ``distribution`` with the plugin ``name`` in ``package``, under ``site``."""
    package = package or f"plugin_{name.replace('-', '_')}"
    distribution = distribution or f"dist-{name}"
    folder = site / package
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(code)
    if manifest is not None:
        (folder / "deepinfer_plugin.toml").write_text(manifest)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[deepinfer.plugins]\n{name} = {package}\n")


def manifest_text(name: str, *components: str, api: str = ">=1.0,<3") -> str:
    """A manifest whose components are given as the lines of their tables."""
    return f'name = "{name}"\napi = "{api}"\n' + "".join(f"\n[[component]]\n{text}\n" for text in components)


def component_text(seam: str, name: str, target: str, extra: str = "") -> str:
    """The lines of one component's table."""
    return f'seam = "{seam}"\nname = "{name}"\nobject = "{target}"\n{extra}'


def thing_code(seam: str, label: str = "") -> str:
    """Source of a class ``Thing`` that has every member of a seam's protocol, and does nothing."""
    path = SEAMS[seam].protocol
    names = protocol_members(load_object(path)) if path else []
    members = "".join(f"    def {name}(self, *args, **named): ...\n" for name in names)
    return f"class Thing:\n    label = {label!r}\n{members}"


@pytest.fixture
def thing() -> Callable[..., str]:
    """:func:`thing_code`."""
    return thing_code


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path to install synthetic distributions in; their packages are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [n for n in sys.modules if n.startswith("plugin_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def install(site: Path) -> Install:
    """Install one plugin with one component: ``install(name, seam, code, extra=..., ...)``."""

    def run(name: str, seam: str = "hooks", code: str = "", *, extra: str = "", **options: str) -> Path:
        package = options.get("package") or f"plugin_{name.replace('-', '_')}"
        component = options.pop("component", name)
        text = manifest_text(name, component_text(seam, component, f"{package}:Thing", extra))
        write_distribution(site, name, text, code, **options)
        importlib.invalidate_caches()
        return site / package

    return run


@pytest.fixture
def write(site: Path) -> Install:
    """Install a distribution with a manifest given as text (or None for none)."""

    def run(name: str, manifest: str | None, code: str = "", **options: str) -> Path:
        write_distribution(site, name, manifest, code, **options)
        importlib.invalidate_caches()
        return site

    return run


@pytest.fixture
def manager(tmp_path: Path) -> Callable[..., PluginManager]:
    """``manager(*plugins, env=..., file=..., environ=..., **options)``: nothing of this process's environment counts.

    env: DEEPINFER_PLUGINS; file: the text of a configuration file.
    """

    def make(
        *plugins: object, env: str | None = None, file: str | None = None, environ: Any = None, **options: Any
    ) -> PluginManager:
        environ = {**(environ or {}), **({} if env is None else {"DEEPINFER_PLUGINS": env})}
        if file is not None:
            (tmp_path / "config.toml").write_text(file)
            options["config_file"] = tmp_path / "config.toml"
        return PluginManager(plugins, environ=environ, **options)

    return make


@pytest.fixture
def row() -> Callable[[PluginManager, str], PluginRow]:
    """``row(manager, component)``: its only row in the manager's table."""

    def find(found: PluginManager, component: str) -> PluginRow:
        (result,) = [row for row in found.table() if row.component == component]
        return result

    return find
