"""The reference pages are what the source says, and their examples fill the seams they speak of."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.hookspecs import HOOK_NAMES
from deepinfer_core.interfaces.seams import SEAMS, Seam
from deepinfer_core.plugins.discovery import discover
from deepinfer_core.plugins.hooks import hook_names
from deepinfer_core.plugins.loading import missing_members, protocol_members
from deepinfer_core.plugins.probe import load_object

ROOT = Path(__file__).parents[2]
NOTES: dict[str, Any] = tomllib.loads((ROOT / "docs" / "reference" / "notes.toml").read_text())
EXAMPLES = {name: note["example"] for name, note in NOTES.items() if "\n" in note["example"]}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("reference")


def test_the_pages_are_up_to_date(tool: Any) -> None:
    pages = tool.pages()
    found = {path.name: path.read_text() for path in tool.TARGET.glob("*.md")}
    assert {name for name in pages.keys() | found.keys() if pages.get(name) != found.get(name)} == set(), (
        "make reference"
    )


def test_every_seam_and_every_hook_is_described(tool: Any) -> None:
    pages = tool.pages()
    assert set(pages) == {f"{name}.md" for name in SEAMS} | {"README.md"}
    for name, seam in SEAMS.items():
        page = pages[f"{name}.md"]
        assert ("## Protocol" in page) == (seam.protocol is not None or name == "hooks")
        assert seam.varies in page and (
            "## A minimal implementation" in page or not seam.is_called or not seam.protocol
        )
    assert all(f"### `{hook}`" in pages["hooks.md"] for hook in HOOK_NAMES)


@pytest.mark.parametrize("seam", [seam for seam in SEAMS.values() if seam.protocol], ids=lambda seam: seam.name)
def test_the_table_promises_what_the_protocol_has(seam: Seam) -> None:
    assert seam.protocol is not None
    assert sorted(re.findall("`(.*?)`", seam.varies)) == sorted(protocol_members(load_object(seam.protocol)))


@pytest.mark.parametrize("seam", EXAMPLES)
def test_an_example_fills_its_seam(seam: str) -> None:
    namespace: dict[str, Any] = {"__file__": __file__}
    exec(EXAMPLES[seam], namespace)
    (cls,) = [item for item in namespace.values() if isinstance(item, type) and item.__module__ == "builtins"]
    protocol = SEAMS[seam].protocol
    assert protocol is None or missing_members(cls(), protocol) == []
    assert seam != "hooks" or hook_names(cls())


def test_capabilities_of_installed_plugins_are_described() -> None:
    for record in discover():
        if record.distribution.startswith("deepinfer-") and record.manifest:
            for component in record.manifest.components:
                assert set(component.capabilities) <= set(NOTES[component.seam]["capabilities"]), record.name


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("One ``x`` of :class:`a.b.C`.", "One `x` of `C`."),
        ("Text.\n\nx: first\n    goes on.\ny, z: second.", "Text.\n\n- `x`: first goes on.\n- `y, z`: second."),
        ("Like so::\n\n    a = 1\n\n    b = 2\n\nEnd.", "Like so:\n\n```python\na = 1\n\nb = 2\n```\n\nEnd."),
        ("::\n\n    [table]\n    a = 1", "```toml\n[table]\na = 1\n```"),
    ],
)
def test_docstrings_become_markdown(tool: Any, doc: str, expected: str) -> None:
    assert tool.markdown(doc) == expected
