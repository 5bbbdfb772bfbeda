"""The example plugins as a user meets them: installed into an environment, used, and uninstalled again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "data" / "v41-tiny-bf16"
PROJECTS = sorted(path.parent for path in (ROOT / "examples" / "plugins").glob("*/pyproject.toml"))
NAMES = [path.name for path in PROJECTS]
METADATA = {path.name: tomllib.loads((path / "pyproject.toml").read_text())["project"] for path in PROJECTS}

PROMPTS = ["Hello", [11] * 40 + [7, 11]]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
CHOICES = ["red", "green", "greenish"]
HOT: dict[str, Any] = {"temperature": 2.0, "seed": 1, "max_tokens": 8, "ignore_eos": True}

#: Runs each case of standard input, as ``LLM`` options and two requests' parameters, and writes what came of it.
CHILD = f"""
import json, sys
from deepinfer_core import LLM, SamplingParams
results = []
for engine, params in json.load(sys.stdin):
    with LLM({str(MODEL)!r}, disable_log_stats=True, banner=False, num_pages=8, **engine) as llm:
        outputs = llm.generate({PROMPTS!r}, [SamplingParams(**each) for each in params], use_tqdm=False)
        active = sorted({{row.name for row in llm.plugins if row.state == "active"}})
        drafted = llm.get_metrics().get("drafted_tokens", 0)
    errors = [output.error for output in outputs]
    results.append({{"errors": errors, "ids": [output.outputs[0].token_ids for output in outputs],
                    "texts": [output.outputs[0].text for output in outputs], "active": active, "drafted": drafted}})
json.dump(results, open(sys.argv[1], "w"))
"""


class Environment:
    """A virtual environment on top of this one: it sees what is installed here, and what it installs stays in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        # addsitedir, not a plain path: editable installs here are .pth files as well.
        lines = [f"import site; site.addsitedir({p!r})" for p in sys.path if p.endswith("site-packages")]
        (site / "outer.pth").write_text("\n".join(lines))

    def run(self, *arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the environment's Python."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_") and k != "PYTHONPATH"}
        command = [str(self.python), *map(str, arguments)]
        home = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
        return subprocess.run(command, input=text, env=kept | home, cwd=self.folder, capture_output=True, text=True)

    def pip(self, *arguments: object) -> None:
        """Run this environment's pip on the other one."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "-q"]
        child = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)
        assert child.returncode == 0, child.stderr

    def states(self) -> dict[str, set[str]]:
        """What ``deepinfer plugins list`` says of each plugin."""
        main = "import sys; from deepinfer_core.cli.main import main; sys.exit(main())"
        found: dict[str, set[str]] = {}
        for row in json.loads(self.run("-c", main, "plugins", "list", "--json").stdout):
            found.setdefault(row["name"], set()).add(row["state"])
        return found

    def generate(self, cases: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]) -> dict[str, Any]:
        """Results by case: ``LLM`` options, and the parameters of the two requests."""
        results = self.folder / "results.json"
        child = self.run("-c", CHILD, results, text=json.dumps([*cases.values()]))
        assert child.returncode == 0, child.stderr
        return dict(zip(cases, json.loads(results.read_text()), strict=True))


def cases(folder: Path) -> dict[str, Any]:
    """How each example is asked to show an effect."""
    log = {"path": str(folder / "requests.jsonl")}
    return {
        "choice-trie": ({}, [{**each, "structured": {"choice": CHOICES}, "max_tokens": 20} for each in (GREEDY, HOT)]),
        "no-repeat-ngram": ({}, [{**each, "extra": {"no-repeat-ngram": 1}} for each in (GREEDY, HOT)]),
        # A random model does not repeat its prompt unless it is made to.
        "prompt-lookup": ({"speculate": 4}, [GREEDY, {**HOT, "forced_token_ids": [11] * 8}]),
        "request-logger": ({"plugin_config": {"request-logger": log}}, [GREEDY, HOT]),
        "top-n-sigma": ({"plugin_config": {"top-n-sigma": {"n": 1e-6}}}, [GREEDY, HOT]),
        "toy-backend": ({}, [GREEDY, HOT]),
    }


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def story(environment: Environment) -> dict[str, Any]:
    """Before the examples are installed, while they are, and after."""
    plain: dict[str, Any] = {"plain": ({"speculate": "off"}, [GREEDY, HOT])}
    story: dict[str, Any] = {"states before": environment.states(), "before": environment.generate(plain)["plain"]}
    environment.pip("install", "--no-index", "--no-deps", "--no-build-isolation", *PROJECTS)
    story["states"] = environment.states()
    used = {
        name: ({"plugins": [name], **options}, params) for name, (options, params) in cases(environment.folder).items()
    }
    story |= environment.generate({**plain, "greedy": ({"speculate": "off"}, [GREEDY, GREEDY]), **used})
    story["own tests"] = environment.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT, *(path / "tests" for path in PROJECTS)
    )
    environment.pip("uninstall", "--yes", *(METADATA[name]["name"] for name in NAMES))
    story |= {"states after": environment.states(), "after": environment.generate(plain)["plain"]}
    return story


def test_they_are_listed_at_once_and_only_while_installed(story: dict[str, Any]) -> None:
    added = {name: states for name, states in story["states"].items() if name not in story["states before"]}
    assert added == {name: {"available"} for name in NAMES}
    assert story["states after"] == story["states before"]


def test_installed_but_not_named_they_change_nothing(story: dict[str, Any]) -> None:
    assert story["plain"] == story["before"]
    assert not set(story["plain"]["active"]) & set(NAMES)


def test_uninstalling_restores_the_former_behaviour(story: dict[str, Any]) -> None:
    assert story["after"] == story["before"]


@pytest.mark.parametrize("name", NAMES)
def test_named_it_is_active(story: dict[str, Any], name: str) -> None:
    assert name in story[name]["active"] and story[name]["errors"] == [None, None]


def test_choice_trie_gives_one_of_the_choices(story: dict[str, Any]) -> None:
    assert set(story["choice-trie"]["texts"]) <= set(CHOICES) and "xgrammar" not in story["choice-trie"]["active"]


def test_no_repeat_ngram_leaves_no_token_twice(story: dict[str, Any]) -> None:
    for ids in story["no-repeat-ngram"]["ids"]:
        assert len(set(ids)) == len(ids)
    assert not {11, 7} & set(story["no-repeat-ngram"]["ids"][1])


def test_prompt_lookup_drafts_and_changes_nothing(story: dict[str, Any]) -> None:
    assert story["prompt-lookup"]["drafted"] > 0 and "dflash" not in story["prompt-lookup"]["active"]
    assert story["prompt-lookup"]["ids"] == [story["before"]["ids"][0], [11] * 8]


def test_request_logger_logs_and_changes_nothing(story: dict[str, Any], environment: Environment) -> None:
    lines = [json.loads(line) for line in (environment.folder / "requests.jsonl").read_text().splitlines()]
    assert sorted(line["event"] for line in lines) == ["added", "added", "finished", "finished", "started"]
    assert story["request-logger"]["ids"] == story["before"]["ids"]


def test_top_n_sigma_of_nearly_0_is_greedy(story: dict[str, Any]) -> None:
    assert story["top-n-sigma"]["ids"] == story["greedy"]["ids"] != story["before"]["ids"]


def test_the_toy_backend_computes_the_same(story: dict[str, Any]) -> None:
    assert story["toy-backend"]["ids"] == story["before"]["ids"] and "cpu" not in story["toy-backend"]["active"]


def test_their_own_tests_pass(story: dict[str, Any]) -> None:
    child = story["own tests"]
    assert child.returncode == 0 and re.search(r"\d+ passed", child.stdout), child.stdout + child.stderr


@pytest.mark.parametrize("path", PROJECTS, ids=NAMES)
def test_each_is_a_whole_distribution(path: Path) -> None:
    """Named as its folder, described, tested, and in the list of examples."""
    package = path / f"deepinfer_{path.name.replace('-', '_')}"
    manifest = tomllib.loads((package / "deepinfer_plugin.toml").read_text())
    assert manifest["name"] == path.name and manifest["summary"]
    assert METADATA[path.name]["entry-points"]["deepinfer.plugins"] == {path.name: package.name}
    assert (package / "py.typed").is_file() and (path / "README.md").is_file()
    assert list((path / "tests").glob("test_*.py"))
    assert f"](plugins/{path.name})" in (ROOT / "examples" / "README.md").read_text()


def test_the_toy_backend_stays_small() -> None:
    """It is there to be read: fewer than 300 lines, blank ones and comments included."""
    package = ROOT / "examples" / "plugins" / "toy-backend" / "deepinfer_toy_backend"
    assert sum(len(path.read_text().splitlines()) for path in package.glob("*.py")) < 300
