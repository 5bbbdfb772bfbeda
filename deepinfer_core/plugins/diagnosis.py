"""What would go wrong with the installed plugins: each is imported, configured and checked in a child process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from attrs import frozen

from deepinfer_core import envs
from deepinfer_core.errors import DeepInferError, PluginError
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.discovery import BUILTIN, PluginRecord
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.probe import TIMEOUT_SECONDS, ask_probe, load_object, run_children
from deepinfer_core.plugins.selection import Selected
from deepinfer_core.plugins.typed_config import describe_config

#: Without these no engine starts.
_REQUIRED = ("backend", "model", "sampler")


Result = Literal["ok", "unusable", "problem"]


@frozen
class Finding:
    """What is to be said of one component, or of one plugin as a whole.

    result: ``unusable`` for a backend that says itself that it cannot run here, which is no fault.
    """

    plugin: str
    seam: str
    component: str
    result: Result
    detail: str = ""


@frozen
class SeamFinding:
    """What would fill a seam, and what stands in the way."""

    seam: str
    filled_by: str
    problem: str


def settings_problems(config_file: str | None = None) -> list[str]:
    """What is wrong with the configuration file, the environment and the selection that they make."""
    problems = []
    for check in (envs.check, lambda: PluginManager(config_file=config_file)):
        try:
            check()
        except DeepInferError as error:
            problems.append(str(error))
    return problems


def diagnose(
    records: Sequence[PluginRecord],
    config_file: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
    *,
    with_settings: bool = True,
) -> list[Finding]:
    """Every component of every plugin, one child process per plugin.

    with_settings: configured as the file and the environment say; otherwise by their own defaults.
    """
    unusable = [record for record in records if record.state in ("broken", "incompatible")]
    asked = [record for record in records if record not in unusable]
    findings = [Finding(record.name, "", "", "problem", record.reason) for record in unusable]
    calls = [[record.name, config_file, with_settings] for record in asked]
    answers = run_children("deepinfer_core.plugins.diagnosis:check_plugin", calls, timeout, "importing it")
    for record, answer in zip(asked, answers, strict=True):
        rows = [("", "", "problem", answer.failure)] if answer.failure else answer.value
        findings += [Finding(record.name, *row) for row in rows]
    return findings


def check_plugin(name: str, config_file: str | None, with_settings: bool) -> list[tuple[str, str, Result, str]]:
    """In the child: of every component of one plugin, its seam and name, and what came of loading it."""
    sources: dict[str, Any] = {"config_file": config_file} if with_settings else {"environ": {}}
    try:
        manager = PluginManager([] if name == BUILTIN else [name], **sources)
    except DeepInferError as error:
        return [("", "", "problem", _first_line(error))]
    return [(s.seam, s.name, *_result_of(manager, s)) for s in manager.selected() if s.record.name == name]


def _result_of(manager: PluginManager, selected: Selected) -> tuple[Result, str]:
    refusal = ask_probe(selected.component.probe) if selected.component.probe else None
    if refusal is not None:
        return "unusable", refusal
    try:
        manager.component(selected.seam, selected.name)
    except PluginError as error:
        return "problem", _first_line(error)
    return "ok", ""


def _first_line(error: DeepInferError) -> str:
    return str(error).partition("\n")[0]


def seam_findings(manager: PluginManager, findings: Sequence[Finding]) -> list[SeamFinding]:
    """One line per seam, from the static selection and from what the components turned out to be."""
    problems = defaultdict(list)
    for finding in findings:
        if finding.result == "problem" and finding.seam:
            problems[finding.seam].append(f"{finding.component}: {finding.detail}")
    healthy = {(f.plugin, f.seam, f.component) for f in findings if f.result == "ok"}
    result = []
    for name, seam in SEAMS.items():
        rows = [row for row in manager.table() if row.seam == name]
        usable = [row for row in rows if (row.name, row.seam, row.component) in healthy and row.state != "disabled"]
        active = [row.component for row in usable if row.state == "active"]
        others = [row.component for row in usable if row.state == "available"]
        listed = ", ".join(active) or (f"none active; installed: {', '.join(others)}" if others else "nothing")
        if seam.key or name in ("command", "backend"):
            listed = ", ".join(active + others) or "nothing"
        if not seam.is_called:
            listed += " (not called by this version)"
        also = problems[name] + _shared_keys(manager, name)
        if name in _REQUIRED and not usable:
            also.append("without one no engine starts")
        result.append(SeamFinding(name, listed, "; ".join(also)))
    return result


def _shared_keys(manager: PluginManager, seam: str) -> list[str]:
    owners = defaultdict(list)
    for record in manager.records:
        for component in record.components(seam) if record.state == "available" else ():
            for key in component.keys:
                owners[key].append(record.owner)
    return [f"{key!r} is served by {' and '.join(each)}" for key, each in owners.items() if len(each) > 1]


def config_schema(component_object: str, config: str | None) -> list[dict[str, str]] | None:
    """In the child: the keys of a component's configuration; None if it has none."""
    config_class: Any = load_object(config) if config else getattr(load_object(component_object), "config_class", None)
    return None if config_class is None else describe_config(config_class)
