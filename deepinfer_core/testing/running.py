"""The suites of one plugin's components, and running them in a child process for ``deepinfer plugins check``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins import PluginManager
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.selection import by_name
from deepinfer_core.testing import ASSERTING, SUITES, suite_for
from deepinfer_core.testing.suite import Suite

#: Module of a plugin's package with suites that need to know more than the plugin's name.
CONFORMANCE = "conformance"
_TESTS = "from deepinfer_core.testing.running import suites_of\nglobals().update(suites_of({plugin!r}))\n"


def suites_of(plugin: str) -> dict[str, type[Suite]]:
    """Test classes for all components of an installed plugin that have a suite, by class name.

    Those in the module ``conformance`` of its package, if it has one; the suites as they are for all others. Raises
    PluginError for a plugin that is unknown or cannot be used.
    """
    manager = PluginManager([plugin], environ={})
    record = by_name(plugin, manager.records, "argument")
    components = record.manifest.components if record.manifest else ()
    own = list(_own_suites(record.package))
    found: dict[str, type[Suite]] = {}
    for component in components:
        if component.seam not in SUITES:
            continue
        fitting = [cls for cls in own if _is_for(cls, plugin, component, components)]
        for cls in fitting or [_plain_suite(plugin, component)]:
            found[cls.__name__] = cls
    return found


def _own_suites(package: str) -> Iterator[type[Suite]]:
    if importlib.util.find_spec(f"{package}.{CONFORMANCE}") is None:
        return
    module = importlib.import_module(f"{package}.{CONFORMANCE}")
    for name, value in vars(module).items():
        if name.startswith("Test") and isinstance(value, type) and issubclass(value, Suite):
            yield value


def _is_for(cls: type[Suite], plugin: str, component: Component, components: Sequence[Component]) -> bool:
    if cls.plugin != plugin or cls.seam != component.seam:
        return False
    if cls.component_name is None and sum(c.seam == component.seam for c in components) > 1:
        raise PluginError(f"{cls.__module__}.{cls.__name__} must set component_name: {plugin!r} has several")
    return cls.component_name in (None, component.name)


def _plain_suite(plugin: str, component: Component) -> type[Suite]:
    name = "".join(c if c.isalnum() else "_" for c in f"Test_{component.seam}_{component.name}")
    return type(name, (suite_for(component.seam),), {"plugin": plugin, "component_name": component.name})


class Recorder:
    """A pytest plugin: a line of JSON as a test begins and as it ends."""

    def __init__(self, plugin: str, conformance: str, file: TextIO) -> None:
        self._plugin, self._conformance, self._file = plugin, conformance, file

    def pytest_configure(self) -> None:
        """pytest runs, and only now can be asked to show what asserts compare."""
        pytest.register_assert_rewrite(*ASSERTING, self._conformance)

    def _write(self, item: Any, result: str, detail: str = "") -> None:
        self._write_line(item.cls.component_name or item.cls.plugin, item.cls.seam, item.name, result, detail)

    def _write_line(self, *values: str) -> None:
        entry = dict(zip(("component", "seam", "test", "result", "detail"), values, strict=True))
        print(json.dumps(entry), file=self._file, flush=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Where the plugin's own suites cannot be imported."""
        if report.failed:
            self._write_line(self._plugin, "", "test_its_suites_can_be_imported", "failed", str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before anything of the test runs."""
        self._write(item, "started")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """After each phase of a test."""
        report: pytest.TestReport = yield
        if report.skipped and isinstance(report.longrepr, tuple):
            self._write(item, "skipped", report.longrepr[2].removeprefix("Skipped: "))
        elif report.failed and call.excinfo is not None:
            self._write(item, "failed", call.excinfo.exconly().removeprefix("Failed: "))
        elif report.when == "call":
            self._write(item, report.outcome)
        return report


def run(plugin: str, paths: Sequence[str], report: str) -> int:
    """In the child: run a plugin's suites, results to the file ``report``; pytest's exit code.

    paths: where the plugin is, if it is not installed.
    """
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    manager = PluginManager([plugin], environ={})  # raises what pytest would only print
    record = by_name(plugin, manager.records, "argument")
    with tempfile.TemporaryDirectory() as folder, open(report, "w", encoding="utf-8") as file:
        tests = Path(folder, "test_conformance.py")
        tests.write_text(_TESTS.format(plugin=plugin))
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        options = [f"--rootdir={folder}", f"--config-file={folder}/pytest.ini", "-p", "no:cacheprovider", "-q"]
        recorder = Recorder(plugin, f"{record.package}.{CONFORMANCE}", file)
        return int(pytest.main([str(tests), *options], plugins=[recorder]))
