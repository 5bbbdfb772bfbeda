"""``deepinfer plugins new``: for every seam a distribution that is installable, tidy, and passes its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from deepinfer_core.cli.local_project import open_project
from deepinfer_core.cli.main import main
from deepinfer_core.cli.plugins_new import render, seams
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.manifest import parse_manifest
from deepinfer_core.testing import SUITES

ROOT = Path(__file__).parents[2]


def name_of(seam: str) -> str:
    return f"try-{seam.replace('_', '-')}"


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new distribution for every seam."""
    folder = tmp_path_factory.mktemp("projects")
    for seam in seams():
        assert main(["plugins", "new", name_of(seam), "--seam", seam, "--path", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def results(projects: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """By seam, ``(test, outcome)`` of its distribution's own tests, all run in one child process."""
    report, paths = tmp_path_factory.mktemp("report") / "junit.xml", []
    for seam in seams():
        site = tmp_path_factory.mktemp("site")
        paths += open_project(projects / name_of(seam), site).paths
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "--rootdir", str(projects)]
    tests = [str(projects / name_of(seam) / "tests") for seam in seams()]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *tests],
        cwd=projects, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)])},
    )  # fmt: skip
    assert report.is_file(), child.stdout + child.stderr
    found: dict[str, list[tuple[str, str]]] = {seam: [] for seam in seams()}
    for case in ElementTree.parse(report).iter("testcase"):
        seam = next(s for s in seams() if f"{name_of(s)}.tests" in case.attrib["classname"])
        outcome = case[0].tag + ": " + case[0].attrib.get("message", "") if len(case) else "passed"
        found[seam].append((case.attrib["name"], outcome))
    return found


def test_every_seam_has_a_suite_and_a_template() -> None:
    assert set(seams()) == set(SUITES) == set(SEAMS)
    for seam, own in seams().items():
        assert own["suite"] == SUITES[seam][1]


@pytest.mark.parametrize("seam", SUITES)
def test_the_tests_of_a_new_distribution_pass(seam: str, results: dict[str, list[tuple[str, str]]]) -> None:
    assert len(results[seam]) >= 5, "the suite was run"
    assert [result for result in results[seam] if not result[1].startswith(("passed", "skipped"))] == []
    passed = [name for name, outcome in results[seam] if outcome == "passed"]
    assert len(passed) >= len(results[seam]) - 3, "what a suite skips is the exception"


@pytest.mark.parametrize("seam", SUITES)
def test_manifest_and_metadata_agree(seam: str) -> None:
    files = render("some-thing", seam)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    manifest = parse_manifest(tomllib.loads(files["deepinfer_some_thing/deepinfer_plugin.toml"]))
    assert project["entry-points"] == {"deepinfer.plugins": {"some-thing": "deepinfer_some_thing"}}
    (component,) = manifest.components
    assert (manifest.name, component.seam, component.name) == ("some-thing", seam, "some-thing")
    assert manifest.incompatibility() is None
    module, _, name = component.object.partition(":")
    source = files[module.replace(".", "/") + ".py"]
    assert f"class {name}" in source
    used = {line.split()[1].split(".")[0] for line in "".join(files.values()).splitlines() if line.startswith("from ")}
    declared = {each.replace("-", "_") for each in project["dependencies"]}
    assert {each for each in used if each.startswith("deepinfer")} <= {*declared, "deepinfer_some_thing"}


def test_new_code_is_tidy(projects: Path) -> None:
    for command in (["check", "--select=E,F,I,B,UP"], ["format", "--check"]):
        tool = [sys.executable, "-m", "ruff", *command, "--no-cache", str(projects)]
        child = subprocess.run(tool, capture_output=True, text=True)
        assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["My_Plugin", "--seam", "hooks"], "NAME must be small letters and digits, with '-' between words"),
        (["core", "--seam", "hooks"], "there is a plugin 'core' already, of deepinfer-core"),
        (["mine", "--seam", "sampeler"], "unknown seam 'sampeler'; did you mean 'sampler'?"),
        (["mine"], "--seam"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", *arguments, "--path", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plugins", "new", "mine", "--seam", "hooks", "--path", str(tmp_path)]
    assert main(arguments) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
