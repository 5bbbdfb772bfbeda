"""Rule 1, declare, then import: discovery lists whatever is installed, imports none of it, and never fails."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer_core.plugins.discovery import PluginRecord, discover

Install = Callable[..., Path]

HOSTILE = "import os\nos._exit(1)\n"


def found(name: str) -> PluginRecord:
    (record,) = [r for r in discover() if r.name == name]
    return record


def test_the_installed_plugins_are_found_in_editable_installs() -> None:
    for name in ("cpu", "deepseek"):
        record = found(name)
        assert (record.state, record.distribution) == ("available", f"deepinfer-plugin-{name}")
        assert record.manifest is not None and record.manifest.components
    version = importlib.metadata.version("deepinfer-core")
    assert (found("core").distribution, found("core").version) == ("deepinfer-core", version)


def test_a_listed_plugin_is_not_imported(install: Install) -> None:
    install("hostile", code=HOSTILE)  # importing it would end this very process
    assert found("hostile").state == "available"
    assert "plugin_hostile" not in sys.modules


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "no deepinfer_plugin.toml in the package 'plugin_sick'"),
        ("name = [", "not readable as UTF-8 TOML"),
        ('name = "other"\napi = ">=1"\n[[component]]\nseam="hooks"\nname="a"\nobject="a:b"', "differs from"),
        ('name = "sick"\napi = ">=1"\n[[component]]\nseam="hook"\nname="a"\nobject="a:b"', "did you mean 'hooks'?"),
    ],
)
def test_a_sick_plugin_is_broken_with_its_reason_and_others_go_on(
    write: Install, install: Install, manifest: str | None, reason: str
) -> None:
    write("sick", manifest, HOSTILE)
    install("well")
    assert found("sick").state == "broken"
    assert reason in found("sick").reason
    assert found("well").state == "available"


def test_missing_and_nested_packages_are_broken(write: Install, site: Path) -> None:
    write("gone", None)
    (site / "plugin_gone" / "__init__.py").unlink()
    (site / "plugin_gone").rmdir()
    write("nested", None, HOSTILE)
    (site / "dist_nested-1.0.dist-info/entry_points.txt").write_text(
        "[deepinfer.plugins]\nnested = plugin_nested.inner:thing\n"
    )
    assert "is not importable" in found("gone").reason
    assert "must name a top-level package" in found("nested").reason
    assert "plugin_nested" not in sys.modules


@pytest.mark.parametrize("damage", [b"[deepinfer.plugins]\nno equals sign\n", b"[deepinfer.plugins]\nx = \xff\n"])
def test_damaged_entry_points_of_one_distribution_hide_no_other(install: Install, site: Path, damage: bytes) -> None:
    install("damaged", code=HOSTILE)
    install("well", code=HOSTILE)
    (site / "dist_damaged-1.0.dist-info" / "entry_points.txt").write_bytes(damage)
    records = {record.name: record for record in discover()}
    assert {"core", "cpu", "deepseek", "well"} <= set(records)
    assert records["well"].state == records["cpu"].state == "available"
    if b"equals" in damage:  # the other one cannot even be seen to be a plugin
        assert records["dist-damaged"].state == "broken"
        assert "the entry points of dist-damaged 1.0 are damaged" in records["dist-damaged"].reason


def test_a_plugin_for_another_seam_version_is_incompatible(write: Install) -> None:
    write("late", 'name = "late"\napi = ">=7"\n[[component]]\nseam="hooks"\nname="a"\nobject="a:b"')
    record = found("late")
    assert record.state == "incompatible"
    assert record.reason == "written for seam versions >=7; this core has hooks 1.0"


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    install("twin", distribution="first")
    install("twin", distribution="second", package="plugin_twin_two")
    twins = [r for r in discover() if r.name == "twin"]
    assert [r.distribution for r in twins] == ["first", "second"]
    for record in twins:
        assert record.state == "broken"
        assert "claimed by first 1.0 and second 1.0" in record.reason


def test_the_name_of_the_built_in_plugin_is_reserved(install: Install) -> None:
    install("core", package="plugin_core")
    ours, theirs = [r for r in discover() if r.name == "core"]
    assert (ours.distribution, ours.state) == ("deepinfer-core", "available")
    assert (theirs.distribution, theirs.state) == ("dist-core", "broken")


def test_the_order_does_not_depend_on_the_directory_order(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib_metadata

    for name in ("b", "a", "d", "c"):
        install(name)
    listed = list(importlib_metadata.distributions())
    orders = []
    for shuffled in (listed, listed[::-1], listed[3:] + listed[:3]):
        monkeypatch.setattr(importlib_metadata, "distributions", lambda found=shuffled: found)
        orders.append([r.name for r in discover()])
    assert orders[0][0] == "core" and orders[0][1:] == sorted(orders[0][1:])
    assert {"a", "b", "c", "d"} < set(orders[0])
    assert orders[1:] == orders[:1] * 2


LISTING = """
import json, sys
sys.modules["torch"] = None  # importing it raises
sys.path.insert(0, sys.argv[1])
imports, opened = [], []
def audit(event, args):
    if event == "import" and args[0].startswith("plugin_"):
        imports.append(args[0])
    if event == "open" and str(args[0]).startswith(sys.argv[1]):
        opened.append(str(args[0]))
sys.addaudithook(audit)
from deepinfer_core.plugins import PluginManager
rows = PluginManager(environ={}).table()
loaded = [name for name in sys.modules if name.startswith("plugin_")]
print(json.dumps([sum(row.name.startswith("p") for row in rows), imports + loaded, len(opened), len(set(opened))]))
"""


def test_300_hostile_distributions_are_listed_without_importing_any_and_each_file_read_once(
    site: Path, install: Install
) -> None:
    """How long it takes is measured by benchmarks/plugin_layer.py."""
    for i in range(300):
        install(f"p{i}", code=HOSTILE)
    script = [sys.executable, "-c", LISTING, str(site)]
    count, imported, opened, files = json.loads(
        subprocess.run(script, capture_output=True, text=True, check=True).stdout
    )
    assert count == 300
    assert imported == []
    assert opened == files <= 3 * 300  # entry points, metadata, manifest


def test_a_plugin_that_is_not_selected_is_not_imported_by_a_start(install: Install, site: Path) -> None:
    install("hostile", code=HOSTILE)
    install("sampling", "sampler", "class Thing:\n    def sample(self, logits, rows): ...\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom deepinfer_core.plugins import PluginManager\n"
        "PluginManager(['sampling'], environ={}).resolve()\n"
        "print([name for name in sys.modules if name.startswith('plugin_')])"
    )
    result = subprocess.run([sys.executable, "-c", script, str(site)], capture_output=True, text=True)
    assert (result.stdout, result.returncode) == ("['plugin_sampling']\n", 0), result.stderr
