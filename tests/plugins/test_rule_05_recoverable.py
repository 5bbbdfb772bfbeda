"""Rule 5, always recoverable: the commands that explain and switch plugins work whatever state these are in."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.main import main
from deepinfer_core.errors import ConfigError, PluginError
from deepinfer_core.plugins.diagnosis import diagnose, seam_findings
from deepinfer_core.plugins.discovery import discover
from deepinfer_core.plugins.probe import run_children
from deepinfer_core.plugins.settings import user_file
from deepinfer_core.plugins.settings_edit import disable, enable

EXIT = "import os\nos._exit(1)\n"
#: Also leaves a process behind that holds all it was given.
HANG = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
time.sleep(300)
"""

COMMANDS = [
    ["--help"],
    ["plugins", "--help"],
    ["plugins", "list"],
    ["plugins", "list", "--json", "--seam", "hooks"],
    ["plugins", "show", "exits"],
    ["plugins", "show", "sick", "--json"],
    ["plugins", "doctor", "exits", "sick"],
    ["plugins", "enable", "exits"],
    ["plugins", "list"],
    ["plugins", "disable", "exits"],
    ["models", "list"],
    ["env"],
]
SCRIPT = """
import json, sys
sys.modules["torch"] = None  # importing it raises
sys.path.insert(0, sys.argv[1])
from deepinfer_core.cli.main import main
codes = []
for command in json.loads(sys.argv[2]):
    print("$", *command)
    codes.append(main(command))
print("codes", codes, [name for name in sys.modules if name.startswith("plugin_")])
"""


@pytest.mark.parametrize("config", ["", "plugins = [", 'plugins = ["no-such"]'], ids=["none", "damaged", "unknown"])
def test_every_command_works_without_torch_beside_plugins_that_exit(
    install: Any, write: Any, site: Path, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("exits", "hooks", EXIT)
    write("sick", "nonsense", EXIT)
    monkeypatch.setenv("DEEPINFER_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(config)
    command = [sys.executable, "-c", SCRIPT, str(site), json.dumps(COMMANDS)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    *shown, last = result.stdout.splitlines()
    enabled = 0 if not config else 2  # a file that is wrong is not written to without a word
    disabled = 2 if config == "plugins = [" else 0
    assert last == f"codes [0, 0, 0, 0, 0, 0, 2, {enabled}, 0, {disabled}, 0, 0] []"
    text = "\n".join(shown)
    assert "importing it died with exit code 1" in text
    assert ("is left out" in result.stderr or "are left out" in result.stderr) is bool(config)


def test_doctor_finds_what_is_wrong_and_gives_up_on_what_hangs(
    install: Any, write: Any, thing: Any, manager: Any
) -> None:
    install("exits", "hooks", EXIT)
    install("hangs", "hooks", HANG)
    install("raises", "sampler", "1 / 0")
    install("lacks", "command", "class Thing: ...")
    install("away", "backend", thing("backend"), extra='probe = "plugin_away:probe"')
    (folder := install("fine", "logits_processor", thing("logits_processor"))).exists()
    write("sick", "nonsense")
    names = ("exits", "hangs", "raises", "lacks", "away", "fine", "sick")
    (folder.parent / "plugin_away" / "__init__.py").open("a").write("def probe(): return 'no device'\n")
    findings = diagnose([record for record in discover() if record.name in names], timeout=8.0)
    found = {finding.plugin: finding for finding in findings}
    assert {name: found[name].result for name in names} == {
        **dict.fromkeys(("exits", "hangs", "raises", "lacks", "sick"), "problem"), "away": "unusable", "fine": "ok",
    }  # fmt: skip
    assert found["exits"].detail == "importing it died with exit code 1"
    assert found["hangs"].detail == "importing it did not answer within 8 s"
    assert "failed in phase 'import': ZeroDivisionError" in found["raises"].detail
    assert "failed in phase 'bind': 'lacks' lacks add_arguments, run" in found["lacks"].detail
    assert found["away"].detail == "no device"
    assert "not readable as UTF-8 TOML" in found["sick"].detail
    seams = {finding.seam: finding for finding in seam_findings(manager(), findings)}
    assert "raises: plugin 'raises'" in seams["sampler"].problem
    assert seams["backend"].problem == "without one no engine starts"  # none of those asked can run
    assert seams["logits_processor"].filled_by == "none active; installed: fine"


def test_a_child_that_prints_much_or_answers_nonsense_is_understood() -> None:
    assert [answer.value for answer in run_children("json:dumps", [[1], ["x" * 100_000]])] == [
        "1",
        f'"{"x" * 100_000}"',
    ]
    (nothing,) = run_children("builtins:object", [[]], what="it")
    assert nothing.failure is not None and nothing.failure.startswith("it died with exit code 1: TypeError")


# -- show


def test_show_tells_origin_components_and_configuration(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import attrs\n@attrs.frozen\nclass Config:\n"
        "    sigma: float = attrs.field(default=1.5, metadata={'help': 'width'})\n"
        "class Thing:\n    def __init__(self, config): ...\n    def sample(self, logits, rows): ...\n"
    )
    folder = install(
        "wide", "sampler", code, extra='config = "plugin_wide:Config"\nconflicts = ["speculator"]\nroles = ["driver"]'
    )
    assert main(["plugins", "show", "wide", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["distribution"], shown["version"], shown["folder"]) == ("dist-wide", "1.0", str(folder))
    assert (shown["state"], shown["entry_point"]) == ("available", "wide = plugin_wide")
    (component,) = shown["components"]
    assert (component["seam"], component["conflicts"], component["roles"]) == ("sampler", ["speculator"], ["driver"])
    assert shown["configuration"] == {"wide": [{"key": "sigma", "type": "float", "default": "1.5", "help": "width"}]}
    assert main(["plugins", "show", "wide"]) == 0
    text = capsys.readouterr().out
    assert "--plugin-config wide.KEY=VALUE" in text and "sigma  float  1.5      width" in text
    assert main(["plugins", "show", "wied"]) == 2
    assert "unknown plugin 'wied'; did you mean 'wide'?" in capsys.readouterr().err
    assert "plugin_wide" not in sys.modules


def test_show_tells_both_of_one_name(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install("twin", "command", EXIT, distribution="first")
    install("twin", "command", EXIT, distribution="second", package="plugin_twin_two")
    assert main(["plugins", "show", "twin", "--json"]) == 0
    assert [shown["distribution"] for shown in json.loads(capsys.readouterr().out)] == ["first", "second"]


# -- enable and disable


@pytest.fixture
def file(tmp_path: Path, install: Any) -> Path:
    """A configuration file with comments, and two plugins for one exclusive seam that may not be imported."""
    install("one", "moe", EXIT)
    install("two", "moe", EXIT)
    path = tmp_path / "config.toml"
    path.write_text("# mine\n\n[plugin_config.one]  # sizes\nwidth = 3\n")
    return path


def test_enable_and_disable_write_the_file_and_keep_the_rest(file: Path, manager: Any, row: Any) -> None:
    enable("one", str(file))
    assert row(manager(config_file=file), "one").state == "active"
    disable("one", str(file))
    assert row(manager(config_file=file), "one").state == "disabled"
    enable("one", str(file))
    enable("one", str(file))
    assert tomllib.loads(file.read_text()) == {
        "plugins": ["one"], "disabled": [], "plugin_config": {"one": {"width": 3}},
    }  # fmt: skip
    assert "# mine" in file.read_text() and "# sizes" in file.read_text()
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == ["config.toml"]


def test_enable_refuses_what_could_not_start_and_changes_nothing(file: Path, write: Any) -> None:
    enable("one", str(file))
    before = file.read_text()
    with pytest.raises(PluginError, match=r"takes one component, selected are 'one' .* and 'two'"):
        enable("two", str(file))
    write("sick", "nonsense")
    with pytest.raises(PluginError, match=r"'sick' of dist-sick 1\.0 cannot be enabled: it is broken"):
        enable("sick", str(file))
    with pytest.raises(PluginError, match="unknown plugin 'tow'; did you mean 'two'"):
        enable("tow", str(file))
    with pytest.raises(PluginError, match="'core' cannot be disabled"):
        disable("core", str(file))
    assert file.read_text() == before


def test_a_leftover_of_an_uninstalled_plugin_can_be_disabled(file: Path, manager: Any) -> None:
    file.write_text('plugins = ["gone"]\n')
    with pytest.raises(PluginError, match="unknown plugin 'gone'"):
        manager(config_file=file)
    disable("gone", str(file))
    assert manager(config_file=file)
    with pytest.raises(PluginError, match="unknown plugin 'never'"):
        disable("never", str(file))


@pytest.mark.parametrize(("text", "message"), [("plugins = [", "is not UTF-8 TOML"), ("plugins = 3", "must be a list")])
def test_a_damaged_file_is_named_and_left_alone(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        enable("one", str(file))
    assert file.read_text() == text


def test_where_the_file_is(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert user_file() == tmp_path / "home" / "deepinfer" / "config.toml"
    assert main(["plugins", "enable", "one"]) == 0
    assert capsys.readouterr().out == f"one is enabled in {user_file()}\n"
    assert tomllib.loads(user_file().read_text()) == {"plugins": ["one"]}
    monkeypatch.setenv("DEEPINFER_CONFIG", str(tmp_path / "other.toml"))
    assert main(["plugins", "disable", "one"]) == 0
    assert main(["plugins", "disable", "two", "--config", str(file)]) == 0
    assert tomllib.loads((tmp_path / "other.toml").read_text()) == {"disabled": ["one"]}
    assert tomllib.loads(file.read_text())["disabled"] == ["two"]
