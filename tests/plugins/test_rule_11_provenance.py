"""Rule 11, visible provenance: the banner, ``LLM.plugins``, ``plugins list`` and ``env`` say the same."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import attrs
import pytest

from deepinfer_core import LLM, hookimpl
from deepinfer_core.cli.main import main
from deepinfer_core.plugins import PluginRow
from deepinfer_core.plugins import banner as banner_module

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
OBSERVER = "from deepinfer_core import hookimpl\nclass Thing:\n    @hookimpl\n    def post_schedule(self, plan): ...\n"


@pytest.fixture(autouse=True)
def nothing_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banner_module, "_shown", set())


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_everything_that_tells_of_plugins_agrees(
    install: Any, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    install("watch", "hooks", OBSERVER)
    install("idle", "hooks", "1 / 0")
    install("off", "hooks", "1 / 0")
    write("sick", "nonsense")
    config = tmp_path / "config.toml"
    config.write_text('plugins = ["watch"]\ndisabled = ["off"]\n')
    caplog.set_level(logging.INFO, "deepinfer_core.plugins.banner")
    options: dict[str, Any] = {"config": config, "num_pages": 4, "max_num_seqs": 1, "disable_log_stats": True}
    with LLM(MODEL, **options) as llm:
        rows = llm.plugins
    states = {row.name: row.state for row in rows}
    assert {name: states[name] for name in ("watch", "idle", "off", "sick", "cpu", "core", "deepseek")} == {
        "watch": "active", "idle": "available", "off": "disabled", "sick": "broken",
        "cpu": "active", "core": "active", "deepseek": "active",
    }  # fmt: skip

    listed = printed(capsys, "plugins", "list", "--config", str(config))
    assert printed(capsys, "env", "--config", str(config))["plugins"] == listed
    # A listing looks neither at the machine nor at a checkpoint, which decide about these three.
    decided = [row for row in rows if row.seam in ("backend", "model", "speculator")]
    assert [row for row in listed if row["seam"] not in ("backend", "model", "speculator")] == [
        attrs.asdict(row) for row in rows if row not in decided
    ]
    same = ("name", "seam", "component", "distribution", "version")
    assert {tuple(row[key] for key in same) for row in listed if row["seam"] in ("backend", "model", "speculator")} == {
        attrs.astuple(row)[:5] for row in decided
    }

    (message,) = [record.getMessage() for record in caplog.records if record.name.endswith("banner")]
    shown = [line.split()[:4] for line in message.splitlines()[1:]]
    assert shown == [[r.seam, r.component, r.distribution, r.version] for r in rows if r.state == "active"]


def test_the_banner_comes_once_per_process_and_selection_and_can_be_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "deepinfer_core.plugins.banner")
    row = PluginRow("x", "sampler", "x", "dist-x", "1.0", "active", "named in plugins")
    for rows in ([row], [row], [attrs.evolve(row, version="2.0")], [row]):
        banner_module.show_banner(rows)
    assert [record.getMessage() for record in caplog.records] == [
        "active plugins:\n  sampler  x  dist-x 1.0  named in plugins",
        "active plugins:\n  sampler  x  dist-x 2.0  named in plugins",
    ]
    caplog.clear()
    with LLM(MODEL, banner=False, num_pages=4, max_num_seqs=1, disable_log_stats=True):
        pass
    assert caplog.records == []


def test_an_object_is_in_the_table_without_a_distribution() -> None:
    class Mine:
        @hookimpl
        def post_schedule(self, plan: Any) -> None: ...

    with LLM(MODEL, plugins=[Mine], num_pages=4, max_num_seqs=1, disable_log_stats=True) as llm:
        (row,) = [row for row in llm.plugins if row.seam == "hooks" and row.state == "active"]
    assert row == PluginRow("Mine", "hooks", "Mine", "Python object", "", "active", "given in plugins=[...]")
