"""``deepinfer plugins check``: what a plugin does right and wrong, whatever it does to the process that asks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer_core.cli.main import main

Write = Callable[..., Path]
GOOD = """
class Command:
    def add_arguments(self, parser):
        parser.add_argument("--times", type=int, default=1, help="how often")

    def run(self, args):
        return 0
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A project with one command: ``write(code, conformance="", manifest="")``; its folder."""

    def run(code: str, conformance: str = "", manifest: str = "") -> Path:
        package = tmp_path / "project" / "src" / "plugin_checked"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "command.py").write_text(code)
        if conformance:
            (package / "conformance.py").write_text(conformance)
        component = '[[component]]\nseam = "command"\nname = "checked"\nobject = "plugin_checked.command:Command"\n'
        text = f'name = "checked"\napi = ">=1.0,<2"\n\n{component}{manifest}'
        (package / "deepinfer_plugin.toml").write_text(text)
        points = '[project.entry-points."deepinfer.plugins"]\nchecked = "plugin_checked"\n'
        (tmp_path / "project" / "pyproject.toml").write_text(
            f'[project]\nname = "dist-checked"\nversion = "2.1"\n{points}'
        )
        return tmp_path / "project"

    return run


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and both outputs."""
    code = main(["plugins", "check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_conforming_plugin_passes_without_being_installed(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, write(GOOD))
    assert code == 0
    assert "checked    command  every option has help" in text and "set the attribute 'arguments'" in text
    assert "1 skipped" in text and "failed" not in text


def test_a_failing_one_is_told_what_is_wrong(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plugins", "check", str(write(GOOD.replace(', help="how often"', ""))), "--json"])
    report = json.loads(capsys.readouterr().out)
    failed = [each for each in report["tests"] if each["result"] == "failed"]
    assert code == 2 and [each["test"] for each in failed] == ["test_every_option_has_help"]
    assert "options without help" in failed[0]["detail"] and "times" in failed[0]["detail"]


def test_its_own_conformance_module_takes_the_place_of_the_plain_suite(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (
        "from deepinfer_core.testing import CommandSuite\n\n"
        "class TestChecked(CommandSuite):\n    plugin = 'checked'\n    arguments = ('--times', '3')\n\n"
        "    def test_of_its_own(self, component):\n        assert False, 'a test of its own'\n"
    )
    code, text = check(capsys, write(GOOD, own))
    assert code == 2 and "skipped" not in text and "a test of its own" in text


def test_suites_that_cannot_be_imported_are_a_failure(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, write(GOOD, "import no_such_library\n"))
    assert code == 2 and "No module named 'no_such_library'" in text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\nos._exit(7)\n", "died with exit code 7"),
        (GOOD.replace("parser.add", "import os; os._exit(7); parser.add"), "died with exit code 7"),
        ("raise RuntimeError('no such library')\n", "RuntimeError: no such library"),
        ("class Command:\n    def run(self): ...\n", "lacks add_arguments"),
    ],
    ids=["exits at import", "exits in a test", "raises at import", "fills no Protocol"],
)
def test_a_broken_one_is_reported_and_ends_nothing_else(
    code: str, words: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, text = check(capsys, write(code))
    assert exit_code == 2 and words in text


def test_one_that_hangs_is_given_up(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    hangs = GOOD.replace("parser.add_argument", "import time; time.sleep(600); parser.add_argument")
    code, text = check(capsys, write(hangs), "--timeout", "20")
    assert code == 2 and "did not answer within 20 s" in text


def test_what_is_no_plugin_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is neither an installed plugin nor a folder; did you mean 'core'?" in check(capsys, "cores")[1]
    assert "there is no folder" in check(capsys, "./nowhere")[1]
    code, text = check(capsys, tmp_path)
    assert code == 2 and "cannot read" in text and "pyproject.toml" in text
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.entry-points."deepinfer.plugins"]\nx = "x"\n'
    )
    assert "has no package 'x', neither at the top nor in src" in check(capsys, tmp_path)[1]
    assert "--timeout must be above 0 seconds" in check(capsys, "core", "--timeout", "0")[1]
