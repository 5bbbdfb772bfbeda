"""Rule 3, resolve once, carry everywhere: workers confirm what the driver froze, load their part, or stop."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins import PluginManager
from deepinfer_core.plugins.failure import set_rank

BACKEND = """
import os
import attrs

if "NO_DEVICE" in os.environ:
    raise OSError("no device")

@attrs.frozen
class Config:
    streams: int = 1

class Thing:
    name = kernels = device = "x"
    def __init__(self, config):
        self.config = config
    def configure(self, num_threads): ...
    def memory_info(self): return 1, 1
"""
RANK = """
import sys
from deepinfer_core.errors import PluginError
from deepinfer_core.plugins import PluginManager

def run(table, rank):
    try:
        manager = PluginManager.confirm(table, rank=rank)
    except PluginError as error:
        return str(error)
    rows = [(row.seam, row.component, row.reason) for row in manager.table() if row.state == "active"]
    loaded = sorted(name for name in sys.modules if name.startswith("plugin_"))
    return rows, loaded, manager.component("backend").config.streams
"""


@pytest.fixture(autouse=True)
def driver_again() -> Iterator[None]:
    yield
    set_rank(None)


@pytest.fixture
def resolved(install: Any, manager: Any, thing: Any) -> PluginManager:
    """A driver's manager: a backend for the workers, a sampler and an observer for itself."""
    install("gpu", "backend", BACKEND, extra='config = "plugin_gpu:Config"')
    install("sampling", "sampler", thing("sampler"))
    install("observer", "hooks", "from deepinfer_core import hookimpl\nclass Thing:\n    @hookimpl\n"
            "    def post_schedule(self, plan): ...\n")  # fmt: skip
    found: PluginManager = manager("gpu", "sampling", "observer", plugin_config={"gpu": {"streams": 4}})
    return found.resolve()


ROWS = [("backend", "gpu", "named in plugins")]


def test_the_same_process_confirms_and_gets_the_workers_part(resolved: PluginManager) -> None:
    table = resolved.freeze()
    assert pickle.loads(pickle.dumps(table)) == table
    assert [(plugin.name, plugin.version) for plugin in table.plugins] == [("gpu", "1.0")]
    there = PluginManager.confirm(table, rank=0)
    assert [(r.seam, r.component, r.reason) for r in there.table() if r.state == "active"] == ROWS
    assert there.component("backend").config.streams == 4
    assert there.component("backend") is not resolved.component("backend")


def test_spawned_ranks_confirm_and_one_with_other_code_stops(resolved: PluginManager, site: Path) -> None:
    table = resolved.freeze()
    (site / "plugin_rank.py").write_text(RANK)
    importlib.invalidate_caches()
    run = importlib.import_module("plugin_rank").run
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(run, [table, table], [0, 1]))
        assert answers == [(ROWS, ["plugin_gpu", "plugin_rank"], 4)] * 2
        with (site / "plugin_gpu" / "__init__.py").open("a") as file:
            file.write("# changed\n")
        message = pool.submit(run, table, 2).result()
    first, header, line = message.splitlines()
    assert first.startswith("rank 2 has other plugins than the driver; install the same ones")
    assert header.split() == ["plugin", "driver", "rank", "2"]
    digest = table.plugins[0].digest
    assert line.startswith(f"gpu     dist-gpu 1.0 ({digest})  dist-gpu 1.0 (") and line.endswith("differs")
    assert line.count(digest) == 1


def test_another_version_and_a_missing_plugin_stop_a_rank_with_a_table_of_both(
    resolved: PluginManager, site: Path
) -> None:
    table = resolved.freeze()
    (site / "dist_gpu-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: dist-gpu\nVersion: 2.0\n")
    importlib.invalidate_caches()
    with pytest.raises(PluginError, match=r"gpu +dist-gpu 1\.0 \(\w+\) +dist-gpu 2\.0 \(\w+\) +differs"):
        PluginManager.confirm(table, rank=1)
    (site / "dist_gpu-1.0.dist-info" / "entry_points.txt").unlink()
    importlib.invalidate_caches()
    with pytest.raises(PluginError, match=r"gpu +dist-gpu 1\.0 \(\w+\) +not installed +differs"):
        PluginManager.confirm(table, rank=1)


def test_a_failure_on_a_rank_names_it(resolved: PluginManager, monkeypatch: pytest.MonkeyPatch) -> None:
    table = resolved.freeze()
    del sys.modules["plugin_gpu"]
    monkeypatch.setenv("NO_DEVICE", "1")
    with pytest.raises(PluginError, match=r"plugin 'gpu' .* failed in phase 'import' on rank 3: OSError: no device"):
        PluginManager.confirm(table, rank=3)


def test_an_object_cannot_be_carried(manager: Any) -> None:
    class Here:
        seam = "backend"
        name = kernels = device = "x"

        def configure(self, num_threads: Any) -> None: ...

        def memory_info(self) -> tuple[int, int]:
            return 1, 1

    with pytest.raises(PluginError, match="'x' fills the seam 'backend', which runs in the workers' processes"):
        manager(Here()).freeze()
