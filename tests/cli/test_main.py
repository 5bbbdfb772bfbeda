"""The command as a whole: help, unknown commands, diagnosis, and what it must not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.main import COMMANDS, main
from deepinfer_core.cli.tables import print_table

DATA = Path(__file__).parents[1] / "data"
TINY = str(DATA / "v41-tiny-bf16")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process where importing torch raises."""
    script = "import sys; sys.modules['torch'] = None; from deepinfer_core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_light_commands_work_without_torch() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in COMMANDS)
    assert run("generate", "--help").returncode == 0
    listed = run("plugins", "list", "--json")
    assert {row["name"] for row in json.loads(listed.stdout)} >= {"core", "cpu", "deepseek"}
    report = json.loads(run("env", "--json").stdout)
    assert report["plugins"] == json.loads(listed.stdout)


def test_inspect_needs_no_torch() -> None:
    result = run("inspect", TINY)
    assert result.returncode == 0, result.stderr
    assert "hidden_size" in result.stdout


def test_a_plugin_adds_a_command(tmp_path: Path) -> None:
    package, info = tmp_path / "plugin_tool", tmp_path / "dist_tool-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dist-tool\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deepinfer.plugins]\ntool = plugin_tool\n")
    (package / "deepinfer_plugin.toml").write_text(
        'name = "tool"\napi = ">=1.0,<2"\n[[component]]\nseam = "command"\nname = "greet"\n'
        'object = "plugin_tool:Greet"\ncapabilities = { help = "says hello" }\n'
    )
    (package / "__init__.py").write_text(
        "from deepinfer_core.errors import ConfigError\n"
        "class Greet:\n"
        "    def add_arguments(self, parser):\n        parser.add_argument('name')\n"
        "    def run(self, args):\n"
        "        if args.name == 'nobody':\n            raise ConfigError('nobody is there')\n"
        "        print('hello', args.name)\n        return 0\n"
    )
    shown = run("--help", PYTHONPATH=str(tmp_path))
    assert "greet          says hello" in shown.stdout
    done = run("greet", "you", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "hello you\n")
    refused = run("greet", "nobody", PYTHONPATH=str(tmp_path))
    assert (refused.returncode, refused.stderr) == (2, "deepinfer greet: error: nobody is there\n")
    assert run("greet", "--nmae", PYTHONPATH=str(tmp_path)).returncode == 2


@pytest.mark.parametrize("arguments", [("env", "--json"), ("--version",)])
def test_a_reader_that_goes_away_ends_the_command_quietly(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "deepinfer_core.cli.main", *arguments]
    read, write = os.pipe()
    os.close(read)  # gone before the first byte
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


def test_bad_input_of_generate_is_refused_without_torch() -> None:
    result = run("generate", "--model", TINY, "--top-p", "2", "Hello")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "deepinfer generate: error: top_p must be in (0, 1], got 2.0\n"


def test_a_misspelt_variable_is_refused_before_anything_is_loaded() -> None:
    result = run("generate", "--model", TINY, "Hello", DEEPINFER_PLUGINZ="x")
    assert result.returncode == 2
    assert "unknown environment variable DEEPINFER_PLUGINZ; did you mean 'DEEPINFER_PLUGINS'?" in result.stderr


def test_diagnosis_works_in_a_broken_environment() -> None:
    broken = {"DEEPINFER_PLUGINS": "no-such", "DEEPINFER_DEBUG": "maybe", "DEEPINFER_PLUGIN": "x"}
    listed = run("plugins", "list", **broken)
    assert listed.returncode == 0
    assert "deepseek" in listed.stdout
    assert "DEEPINFER_PLUGINS are left out: unknown plugin 'no-such'" in listed.stderr
    report = run("env", **broken)
    assert report.returncode == 0
    assert "invalid: environment variable DEEPINFER_DEBUG must be one of 1, true" in report.stdout
    assert "unknown; did you mean 'DEEPINFER_PLUGINS'?" in report.stdout


def test_an_unknown_command_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["genrate"]) == 2
    assert "unknown command 'genrate'; did you mean 'generate'?" in capsys.readouterr().err
    assert main([]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.metadata

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == importlib.metadata.version("deepinfer-core") + "\n"


def test_debug_shows_the_traceback_of_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPINFER_DEBUG", "yes")
    assert main(["plugins", "list", "--seam", "modl"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "unknown seam 'modl'; did you mean 'model'?" in error


def test_plugins_of_one_seam(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--seam", "backend", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["seam"] for row in rows} == {"backend"}


def test_inspect_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", TINY, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    config = json.loads((Path(TINY) / "config.json").read_text())
    assert shown["architecture"] == "DeepseekV41ForCausalLM"
    assert shown["plugin"].startswith("deepseek (deepinfer-plugin-deepseek ")
    assert len(shown["plan"]) == config["text_config"]["num_hidden_layers"]
    assert main(["inspect", TINY]) == 0
    text = capsys.readouterr().out
    assert "vocab_size" in text and "layer  mode" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "did you mean 'DeepseekV41ForCausalLM'?"),
        ({"text_config": {}}, "vocab_size"),
    ],
)
def test_inspect_refuses_a_bad_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    config = json.loads((Path(TINY) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    assert main(["inspect", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_tables_are_plain_when_piped_and_drawn_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    print_table(("a", "long name"), [("x", "[y]"), ("wide cell", "")])
    assert capsys.readouterr().out == "a          long name\nx          [y]\nwide cell\n"
    terminal = Terminal()
    print_table(("a", "b"), [("x", "[y]")], terminal)
    assert "[y]" in terminal.getvalue()
    assert "│" in terminal.getvalue()
