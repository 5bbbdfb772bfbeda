"""What a model's name finds: folders, installed checkpoint packages, the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.cli.main import main
from deepinfer_core.errors import CheckpointError, ConfigError, PluginError
from deepinfer_core.interfaces.checkpoint import Checkpoint, CheckpointFiles
from deepinfer_core.model_loader.resolve import open_model
from deepinfer_core.plugins import PluginManager

DATA = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
FILES = [file for file in DATA.iterdir() if not file.name.startswith("golden")]
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

CODE = """
from importlib import resources
from pathlib import Path
from deepinfer_core.interfaces.checkpoint import CheckpointFiles

class Shipped:
    def locate(self, name):
        folder = Path(str(resources.files(__name__))) / "checkpoint"
        return CheckpointFiles(path=folder, license="MIT", card=folder / "README.md")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("DEEPINFER_PLUGINS", raising=False)
    yield folder
    for name in [name for name in sys.modules if name.startswith("shipped_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def install(site: Path) -> Callable[..., Path]:
    """``install("nano")``: a distribution that ships the golden checkpoint under that name; its package's folder."""

    def run(name: str, *, code: str = CODE, files: bool = True, plugin: str = "") -> Path:
        plugin = plugin or name
        package = site / f"shipped_{plugin}"
        (package / "checkpoint").mkdir(parents=True)
        (package / "__init__.py").write_text(code)
        (package / "deepinfer_plugin.toml").write_text(
            f'name = "{plugin}"\napi = ">=1.0,<2"\nsummary = "for tests"\n[[component]]\nseam = "checkpoint"\n'
            f'name = "{plugin}"\nobject = "shipped_{plugin}:Shipped"\n[component.capabilities]\n'
            f'models = ["{name}"]\nlicense = "MIT"\n'
        )
        for file in FILES if files else []:
            shutil.copy(file, package / "checkpoint")
        info = site / f"model_{plugin}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: model-{plugin}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[deepinfer.plugins]\n{plugin} = shipped_{plugin}\n")
        importlib.invalidate_caches()
        return package

    return run


def find(model: str | Path, *plugins: object) -> Path:
    return open_model(model, PluginManager(plugins, environ={})).path


# -- installed checkpoints


def test_an_installed_checkpoint_runs_by_its_name(install: Any) -> None:
    folder = install("nano") / "checkpoint"
    with LLM("nano", num_pages=16, max_num_seqs=2, disable_log_stats=True) as llm:
        rows = [row for row in llm.plugins if row.seam == "checkpoint" and row.state == "active"]
        by_name = llm.generate("Hello", PARAMS)[0].outputs
        assert llm.engine.hf_config.path == folder
    assert [(row.component, row.distribution, row.reason) for row in rows] == [("nano", "model-nano", "serves nano")]
    with LLM(DATA, num_pages=16, max_num_seqs=2, disable_log_stats=True) as llm:
        assert llm.generate("Hello", PARAMS)[0].outputs == by_name


def test_no_model_means_the_default_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = {"tiny": CheckpointFiles(path=DATA, license="MIT")}
    monkeypatch.setattr(PluginManager, "checkpoint_for", lambda self, model: shipped.get(model))
    with LLM(num_pages=16, max_num_seqs=2, disable_log_stats=True) as llm:
        assert llm.engine.hf_config.path == DATA
        text = llm.generate("Hello", PARAMS)[0].outputs[0].text
    options = ["--num-pages", "16", "--max-num-seqs", "2", "--max-tokens", "4", "--temperature", "0", "--ignore-eos"]
    assert main(["generate", *options, "Hello"]) == 0
    assert capsys.readouterr().out == text + "\n"
    assert main(["inspect", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(DATA)


def test_the_default_model_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginManager, "checkpoint_for", lambda self, model: None)
    with pytest.raises(
        ConfigError, match=r"'tiny' is not installed; pip install deepinfer-model-tiny, or give a model"
    ):
        LLM()


def test_the_files_are_described_by_the_component(install: Any) -> None:
    package = install("nano")
    manager = PluginManager(environ={})
    files = manager.checkpoint_for("nano")
    assert files == CheckpointFiles(
        path=package / "checkpoint", license="MIT", card=package / "checkpoint" / "README.md"
    )
    assert isinstance(manager.component("checkpoint"), Checkpoint)


def test_a_folder_with_a_checkpoint_comes_before_a_name(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = install("nano") / "checkpoint"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano").mkdir()
    assert find("nano") == shipped  # a folder of that name without a checkpoint is not meant
    shutil.copy(DATA / "config.json", tmp_path / "nano")
    assert find("nano") == Path("nano")


def test_an_object_may_ship_one(tmp_path: Path) -> None:
    class Mine:
        seam = "checkpoint"
        models = ("mine",)

        def locate(self, name: str) -> CheckpointFiles:
            return CheckpointFiles(path=DATA, license="none")

    assert find("mine", Mine()) == DATA
    assert {row.name for row in PluginManager([Mine()], environ={}).checkpoints()} == {"mine", "tiny"}


def test_listing_imports_nothing(install: Any, site: Path) -> None:
    install("nano", code="raise SystemExit('imported')")
    script = "import sys; sys.modules['torch'] = None; from deepinfer_core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "models", "list"]
    environ = {**os.environ, "PYTHONPATH": str(site)}
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environ)
    assert shown.returncode == 0, shown.stderr
    expected = {"name": "nano", "plugin": "nano", "distribution": "model-nano", "version": "1.0"}
    assert {**expected, "license": "MIT", "summary": "for tests"} in json.loads(shown.stdout)
    assert "nano" in subprocess.run(command, capture_output=True, text=True, env=environ).stdout


def test_two_packages_that_ship_one_name_are_both_named(install: Any) -> None:
    install("nano", plugin="one")
    install("nano", plugin="two")
    with pytest.raises(PluginError, match=r"model 'nano' is served by 'one' of model-one 1.0 and 'two' of model-two"):
        find("nano")
    assert find("nano", "two").parent.name == "shipped_two"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (CODE, "which has no config.json; reinstall it"),
        ("class Shipped:\n    def locate(self, name): raise OSError('gone')\n", "'run': OSError: gone"),
        ("class Shipped:\n    def locate(self, name): return name\n", "must return CheckpointFiles, got str"),
        ("raise RuntimeError('broken')", "'import': RuntimeError: broken"),
        ("class Shipped: pass\n", "lacks locate"),
    ],
)
def test_a_package_that_fails_is_named(install: Any, code: str, words: str) -> None:
    plugin = f"bad{abs(hash(words)) % 10**6}"
    install(plugin, code=code, files=False)
    with pytest.raises(PluginError) as caught:
        find(plugin)
    assert words in str(caught.value)
    assert f"model-{plugin} 1.0" in str(caught.value)


# -- unknown names and paths


def test_an_unknown_name_lists_the_known_ones(install: Any) -> None:
    install("nano")
    with pytest.raises(ConfigError, match=r"unknown model 'nanu'; did you mean 'nano'\? \(installed: .*nano"):
        find("nanu")


def test_paths_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(DATA) == find(str(DATA)) == DATA
    monkeypatch.chdir(tmp_path)
    for missing in (str(tmp_path / "a"), "./a", "../a", Path("a"), Path("a/b")):
        with pytest.raises(CheckpointError, match="there is no folder"):
            find(missing)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty has no config.json"):
        find("empty")


# -- the hub


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache with one snapshot of ``org/model``, and no network."""
    folder = tmp_path / "hub"
    repo = folder / "models--org--model"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    for file in FILES:
        shutil.copy(file, snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


def test_a_cached_repository_needs_no_network(cache: Path) -> None:
    assert find("org/model") == cache


def test_what_the_cache_lacks_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    from_cache = huggingface_hub.snapshot_download

    def download(repo_id: str, **options: Any) -> str:
        if options.get("local_files_only"):
            return from_cache(repo_id, **options)
        asked.append(repo_id)
        return str(DATA)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find("org/model") == cache and asked == []
    assert find("org/other") == DATA and asked == ["org/other"]
    (cache / "model.safetensors").unlink()  # as an interrupted download leaves it
    assert find("org/model") == DATA and asked == ["org/other", "org/model"]


def test_without_cache_and_network_the_reason_is_given(cache: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        find("org/other")
    message = str(caught.value)
    assert "there is no folder org/other, and the Hugging Face repository org/other is not in the cache" in message
    assert "give its folder as the model" in message


def test_a_name_the_hub_would_not_have_is_refused(cache: Path) -> None:
    with pytest.raises(CheckpointError, match="is no name of a Hugging Face repository"):
        find("org/mo..del")
