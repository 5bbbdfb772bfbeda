"""``deepinfer plugins check``: run the conformance suites of a plugin's seams, in a child process."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from deepinfer_core.cli.plugins_list import forgiving_manager
from deepinfer_core.cli.tables import print_table
from deepinfer_core.errors import ConfigError, PluginError, nearest
from deepinfer_core.plugins.probe import Answer, run_children

if TYPE_CHECKING:
    from deepinfer_core.cli.local_project import LocalProject

TIMEOUT_SECONDS = 900.0


@attrs.frozen
class CheckResult:
    """One test of one component. result: passed, failed, skipped, or died, where the process ended in it."""

    component: str
    seam: str
    test: str
    result: str
    detail: str

    @property
    def title(self) -> str:
        """The test's name as words."""
        return self.test.removeprefix("test_").replace("_", " ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer plugins check``."""
    parser.add_argument("plugin", metavar="PATH_OR_NAME", help="folder of a plugin's project, or an installed plugin")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS",
        help="give up after this time (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print a table of tests. 0 when none failed, else 2."""
    if not args.timeout > 0:
        raise ConfigError(f"--timeout must be above 0 seconds, got {args.timeout:g}")
    if importlib.util.find_spec("pytest") is None:
        raise ConfigError("the conformance suites need pytest: pip install 'deepinfer-core[testing]'")
    with tempfile.TemporaryDirectory() as folder:
        project = _find(args.plugin, Path(folder))
        results, failures = [], []
        for number, plugin in enumerate(project.plugins):
            print(f"checking {plugin}; this may take a minute", file=sys.stderr)
            report = Path(folder) / f"report-{number}"
            arguments = [plugin, list(project.paths), str(report)]
            (answer,) = run_children("deepinfer_core.testing.running:run", [arguments], args.timeout, plugin)
            found = _read(report, answer)
            results += found
            if answer.failure and not any(result.result == "died" for result in found):
                failures.append(answer.failure)
            elif not found:
                failures.append(f"{plugin} has no component that a suite exists for")
    _print(results, failures, as_json=args.json)
    return 2 if failures or any(result.result in ("failed", "died") for result in results) else 0


def _find(plugin: str, folder: Path) -> LocalProject:
    """The plugin of an installed distribution, or those of a folder."""
    from deepinfer_core.cli.local_project import LocalProject, open_project

    known = sorted({record.name for record in forgiving_manager(None).records})
    if plugin in known:
        return LocalProject((plugin,), ())
    if not Path(plugin).is_dir():
        if os.sep in plugin:
            raise ConfigError(f"there is no folder {plugin}")
        hint = f"{nearest(plugin, known)} (installed: {', '.join(known)})"
        raise PluginError(f"{plugin!r} is neither an installed plugin nor a folder{hint}")
    site = folder / "site"
    site.mkdir()
    return open_project(Path(plugin), site)


def _read(report: Path, answer: Answer) -> list[CheckResult]:
    """Results in the order of the tests; the last word on each counts."""
    lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    results: dict[tuple[str, str, str], CheckResult] = {}
    for line in lines:
        result = CheckResult(**json.loads(line))
        key = (result.component, result.seam, result.test)
        if not (key in results and results[key].result == "failed"):  # what its teardown says comes later
            results[key] = result
    return [
        attrs.evolve(result, result="died", detail=answer.failure or "") if result.result == "started" else result
        for result in results.values()
    ]


def _print(results: list[CheckResult], failures: list[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"tests": [attrs.asdict(result) for result in results], "failures": failures}, indent=2))
        return
    rows = [(r.component, r.seam, r.title, r.result, "\n".join(r.detail.splitlines()[:1])) for r in results]
    if rows:
        print_table(("component", "seam", "test", "result", "detail"), rows)
    for result in results:
        if result.result in ("failed", "died"):
            print(f"\n{result.component} ({result.seam}): {result.title}\n{result.detail}")
    for failure in failures:
        print(f"\n{failure}")
    counts = Counter(result.result for result in results)
    print("\n" + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) if counts else "")
