"""Rule 6, versioned seams: a manifest's range is checked before import, and no signature moves without its version."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from deepinfer_core import _C
from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import NATIVE_ABI, SEAMS

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool that writes the snapshot."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("seam_signatures")


# -- ranges


@pytest.mark.parametrize(
    ("api", "state"),
    [(">=1.0,<2", "available"), (">=1", "available"), ("==1.0", "available"), (">1.0", "incompatible"),
     (">=2", "incompatible"), ("<1", "incompatible"), ("1.0", "broken"), (">=1.0 <2", "broken")],
)  # fmt: skip
def test_the_range_is_checked_before_import(write: Any, manager: Any, api: str, state: str) -> None:
    text = f'name = "x"\napi = "{api}"\n[[component]]\nseam = "hooks"\nname = "x"\nobject = "plugin_x:Thing"\n'
    write("x", text, "raise SystemExit(1)")
    (row,) = [row for row in manager().table() if row.name == "x"]
    assert row.state == state
    if state != "available":
        with pytest.raises(PluginError, match="failed in phase 'discover'"):
            manager("x")
    assert "plugin_x" not in sys.modules


# -- signatures


def test_no_seam_moved_without_its_version(tool: Any) -> None:
    old, new = tool.parse(tool.TARGET.read_text()), tool.current()
    assert tool.problems(old, new) == []
    assert old == new, "python tools/seam_signatures.py brings the snapshot up to date"


def test_the_snapshot_has_every_seam_and_hook(tool: Any) -> None:
    seams = tool.current()
    assert list(seams) == list(SEAMS)
    assert {name for name, seam in seams.items() if not seam.lines} == {
        name for name, seam in SEAMS.items() if seam.protocol is None and name != "hooks"
    }
    assert "protocol HookSpecs.post_schedule(self, plan: StepPlan) -> None" in seams["hooks"].lines
    assert tool.parse(tool.as_text(seams)) == seams


@pytest.mark.parametrize(
    ("change", "version", "needed"),
    [
        (lambda lines: lines, (1, 0), None),
        (lambda lines: [*lines, "class View.more: int"], (1, 0), "1.1"),
        (lambda lines: [*lines, "class View.more: int"], (1, 1), None),
        (lambda lines: [*lines, "protocol Sampler.more(self) -> int"], (1, 1), "2.0"),
        (lambda lines: [*lines, "protocol DraftingSampler.more(self) -> int"], (1, 0), "1.1"),
        (lambda lines: lines[1:], (1, 5), "2.0"),
        (lambda lines: [lines[0] + " | None", *lines[1:]], (1, 1), "2.0"),
        (lambda lines: [lines[0] + " | None", *lines[1:]], (2, 0), None),
        (lambda lines: lines[::-1], (1, 0), None),
    ],
)
def test_what_moves_needs_a_version(tool: Any, change: Any, version: tuple[int, int], needed: str | None) -> None:
    before = tool.Signatures((1, 0), ("protocol Sampler.sample(self) -> int", "class View.rows: int"))
    after = attrs.evolve(before, version=version, lines=tuple(change(list(before.lines))))
    found = tool.problems({"sampler": before}, {"sampler": after})
    assert [f"needs version {needed}" in problem for problem in found] == ([] if needed is None else [True])
    assert tool.problems({"sampler": attrs.evolve(before, lines=())}, {"sampler": after}) == []


# -- native code


def test_the_cores_own_native_code_has_the_tag_that_its_python_asks_for() -> None:
    assert _C.DEEPINFER_ABI == NATIVE_ABI


def test_native_code_built_for_another_core_is_refused_at_import(write: Any, manager: Any, site: Path) -> None:
    text = (
        'name = "fast"\napi = ">=1.0"\nnative = ["plugin_fast.ext"]\n[[component]]\nseam = "command"\nname = "fast"\n'
        'object = "plugin_fast:Thing"\n'
    )
    code = "class Thing:\n    def add_arguments(self, parser): ...\n    def run(self, args): return 0\n"
    write("fast", text, code)
    extension = site / "plugin_fast" / "ext.py"  # what counts is the attribute, not what a module is made of
    for tag, message in (("'other'", "has the ABI tag 'other'"), ("None", "has the ABI tag None")):
        extension.write_text(f"DEEPINFER_ABI = {tag}\n")
        with pytest.raises(PluginError, match=rf"phase 'import': plugin_fast\.ext {message}, this core needs"):
            manager("fast").component("command", "fast")
        del sys.modules["plugin_fast.ext"]
    extension.write_text(f"DEEPINFER_ABI = {NATIVE_ABI!r}  # of this core\n")
    importlib.invalidate_caches()
    assert manager("fast").component("command", "fast").run(None) == 0
