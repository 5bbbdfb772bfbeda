"""What is installed, built and promised agrees: requirements, distributions, Makefile, CI and README."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def is_complete(project: Path) -> bool:
    """Whether a distribution that ships a checkpoint has it; until then it is only a place for it."""
    packages = list(project.glob("deepinfer_model_*"))
    return not packages or any((package / "checkpoint" / "config.json").is_file() for package in packages)


PROJECTS = sorted(
    path.parent
    for path in [ROOT / "pyproject.toml", *ROOT.glob("kernels/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")]
    if path.relative_to(ROOT).parts[0] in ("pyproject.toml", "kernels", "backends", "plugins")
    and is_complete(path.parent)
)
METADATA = {path: tomllib.loads((path / "pyproject.toml").read_text())["project"] for path in PROJECTS}


def relative(path: Path) -> str:
    return "." if path == ROOT else f"./{path.relative_to(ROOT)}"


def requirement_lines(name: str) -> list[str]:
    lines = (ROOT / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_distributions_are_those_of_the_layout():
    assert {relative(path) for path in PROJECTS} >= {".", "./kernels", "./backends/cpu", "./plugins/deepseek"}
    assert METADATA[ROOT]["name"] == "deepinfer-core"


def test_requirements_install_every_distribution_editable():
    editable = {line.removeprefix("-e ") for line in requirement_lines("requirements.txt") if line.startswith("-e ")}
    assert editable == {relative(path) for path in PROJECTS}


def test_torch_is_exact_where_it_is_installed_and_absent_from_wheels():
    assert "torch==2.13.0" in requirement_lines("requirements.txt")
    for metadata in METADATA.values():
        names = {Requirement(text).name for text in metadata["dependencies"]}
        assert "torch" not in names, f"{metadata['name']} would choose a build of torch for its users"


@pytest.mark.parametrize("path", PROJECTS, ids=relative)
def test_metadata(path):
    metadata = METADATA[path]
    assert metadata["license"] == "Apache-2.0" and metadata["requires-python"] == ">=3.11"
    assert metadata["version"] == METADATA[ROOT]["version"]
    package = metadata["name"].replace("-", "_")
    assert (path / package / "__init__.py").is_file() and (path / package / "py.typed").is_file()
    if package.startswith("deepinfer_plugin_"):
        assert package in metadata["entry-points"]["deepinfer.plugins"].values()
        assert (path / package / "deepinfer_plugin.toml").is_file()


def test_imports_run_one_way_in_the_metadata_too():
    ours = {metadata["name"] for metadata in METADATA.values()}

    def needed(path: Path) -> set[str]:
        return {Requirement(text).name for text in METADATA[path]["dependencies"]} & ours

    assert needed(ROOT) == needed(ROOT / "kernels") == set()


def test_the_makefile_knows_every_distribution_and_target():
    text = (ROOT / "Makefile").read_text()
    projects = re.search(r"^PROJECTS := (.*)$", text, re.MULTILINE)[1].split()
    assert set(projects) == {relative(path) for path in PROJECTS}
    targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE))
    assert targets >= {"install", "test", "lint", "format", "stubs", "clean"}
    assert set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()) == targets
    assert set(re.findall(r"^make ([a-z]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)) <= targets


def test_ci_runs_the_readmes_commands():
    """.ci/run executes the block as it stands; this keeps the promised commands in it."""
    block = re.search(r"^```bash ci\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block, "README.md has no block opened by ```bash ci"
    commands = block[1].strip().splitlines()
    assert commands[0] == "pip install -r requirements.txt"
    assert 'deepinfer generate "A hacker is"' in commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_licence_is_apache_2():
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
