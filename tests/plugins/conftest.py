"""Synthetic plugin distributions, written to a folder as an installer would leave them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., Path]


def write_distribution(
    site: Path, name: str, manifest: str | None, code: str = "", *, package: str = "", distribution: str = ""
) -> None:
    """A distribution ``distribution`` 1.0 with the plugin ``name`` in ``package``, under ``site``."""
    package = package or f"plugin_{name.replace('-', '_')}"
    distribution = distribution or f"dist-{name}"
    folder = site / package
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(code)
    if manifest is not None:
        (folder / "deepinfer_plugin.toml").write_text(manifest)
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[deepinfer.plugins]\n{name} = {package}\n")


def manifest_text(name: str, *components: str, api: str = ">=1.0,<2") -> str:
    """A manifest whose components are given as the lines of their tables."""
    return f'name = "{name}"\napi = "{api}"\n' + "".join(f"\n[[component]]\n{text}\n" for text in components)


def component_text(seam: str, name: str, target: str, extra: str = "") -> str:
    """The lines of one component's table."""
    return f'seam = "{seam}"\nname = "{name}"\nobject = "{target}"\n{extra}'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path to install synthetic distributions in; their packages are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.delenv("DEEPINFER_PLUGINS", raising=False)
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
