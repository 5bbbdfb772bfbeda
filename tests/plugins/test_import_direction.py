"""Imports run one way: plugins and backends to kernels and the core's public modules, kernels and core to
nothing of ours."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(p for folder in ("plugins", "backends") for p in (ROOT / folder).glob("*/deepinfer_plugin_*"))
NAMES = {p.name for p in PLUGINS}

#: Modules of the core that plugins may build on.
PUBLIC = (
    "deepinfer_core",
    "deepinfer_core.config",
    "deepinfer_core.errors",
    "deepinfer_core.hookspecs",
    "deepinfer_core.interfaces",
    "deepinfer_core.model_loader",
    "deepinfer_core.outputs",
    "deepinfer_core.sampling_params",
    "deepinfer_core.testing",
    "deepinfer_core.tokenizer",
)


#: Modules of the core that its interfaces may import: they import nothing of ours but each other.
LEAVES = {"columns", "errors", "frozen", "outputs", "tokenizer"}


def imports(source: str) -> Iterator[str]:
    """Absolute names of all modules that ``source`` imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def ours(package: Path) -> dict[str, list[str]]:
    """Per file of a package, its imports of our packages other than itself."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        names = [n for n in imports(path.read_text()) if n.startswith("deepinfer_")]
        found[str(path.relative_to(ROOT))] = [n for n in names if n.split(".")[0] != package.name]
    assert found, f"{package} has no Python file"
    return found


def is_public(name: str) -> bool:
    parts = name.split(".")
    modules = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
    is_private = any(part.startswith("_") for part in parts)
    return not is_private and any(module in PUBLIC for module in modules[1:] or modules)


def test_the_parser_sees_every_form() -> None:
    source = "import a.b\nfrom c import d\ndef f():\n    from e.f import g\n    importlib.import_module('h.i')\n"
    assert list(imports(source)) == ["a.b", "c.d", "e.f.g", "h.i"]


@pytest.mark.parametrize("package", [ROOT / "deepinfer_core", ROOT / "kernels/deepinfer_kernels"], ids=lambda p: p.name)
def test_core_and_kernels_import_nothing_of_ours(package: Path) -> None:
    assert {path: names for path, names in ours(package).items() if names} == {}


def parts_of_core() -> dict[str, set[str]]:
    """Per package of the core, or module beside its packages, those that it imports, if only for type checking."""
    core = ROOT / "deepinfer_core"
    parts = {path.stem for path in core.iterdir() if path.suffix in (".py", ".pyi") or path.is_dir()}
    found: dict[str, set[str]] = {}
    for path in sorted(core.rglob("*.py")):
        part = path.relative_to(core).parts[0].removesuffix(".py")
        names = [name.split(".") for name in imports(path.read_text()) if name.split(".")[0] == core.name]
        targets = {name[1] if len(name) > 1 and name[1] in parts else "__init__" for name in names}
        found.setdefault(part, set()).update(targets - {part})
    return found


def test_no_circle_between_parts_of_the_core() -> None:
    parts = parts_of_core()
    assert {"interfaces", "sampling_params"} <= parts["engine"] and "hookspecs" in parts["plugins"]
    try:
        order = list(graphlib.TopologicalSorter(parts).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")
    assert order.index("interfaces") < order.index("plugins") < order.index("engine") < order.index("llm")


def test_interfaces_look_upward_at_nothing() -> None:
    parts = parts_of_core()
    assert parts["interfaces"] <= LEAVES
    assert {name for leaf in LEAVES for name in parts[leaf]} <= LEAVES


@pytest.mark.parametrize("package", PLUGINS, ids=lambda p: p.name)
def test_plugins_import_kernels_and_public_modules_of_the_core(package: Path) -> None:
    for path, names in ours(package).items():
        for name in names:
            top = name.split(".")[0]
            assert top not in NAMES, f"{path} imports the plugin {name}"
            assert top == "deepinfer_kernels" or is_public(name), f"{path} imports {name}, which is not public"


def names_of_plugins() -> set[str]:
    """What this repository's manifests call plugins, components and the packages that they are in."""
    manifests = [tomllib.loads(path.read_text()) for path in ROOT.glob("[bp]*/*/*/deepinfer_plugin.toml")]
    names = {table["name"] for manifest in manifests for table in (manifest, *manifest["component"])}
    packages = {component["object"].split(".")[0].split(":")[0] for m in manifests for component in m["component"]}
    return names | packages | {package.replace("_", "-") for package in packages}


def test_the_core_names_no_plugin() -> None:
    """Manifests say what is the default. ``cpu`` is left out, a device of torch too; ``tiny`` is the default model."""
    names = names_of_plugins()
    assert {"xgrammar", "deepinfer-plugin-cpu", "deepinfer_model_tiny", "dflash"} <= names
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(names - {'cpu'})))})(?![\w-])")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / "deepinfer_core").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in pattern.finditer(node.value)
    ]
    assert found == ["deepinfer_core/config.py: tiny"]


LIGHT = (
    "deepinfer_core", "deepinfer_core._C", "deepinfer_core.arg_utils", "deepinfer_core.cli.chat",
    "deepinfer_core.cli.main", "deepinfer_core.cli.models", "deepinfer_core.cli.plugins_list",
    "deepinfer_core.cli.plugins_show", "deepinfer_core.cli.plugins_doctor", "deepinfer_core.cli.plugins_enable",
    "deepinfer_core.cli.plugins_disable", "deepinfer_core.plugins.carry", "deepinfer_core.plugins.diagnosis",
    "deepinfer_core.interfaces.checkpoint",
    "deepinfer_core.model_loader.resolve", "deepinfer_core.worker.step_input",
    "deepinfer_core.cli.generate", "deepinfer_core.cli.inspect", "deepinfer_core.config", "deepinfer_core.envs",
    "deepinfer_core.errors", "deepinfer_core.hookspecs", "deepinfer_core.interfaces.seams", "deepinfer_core.plugins",
    "deepinfer_core.plugins.probe", "deepinfer_core.sampling_params", "deepinfer_plugin_cpu.backend",
)  # fmt: skip


def test_light_modules_import_no_torch() -> None:
    script = (
        "import importlib, sys; sys.modules['torch'] = None\nfor name in sys.argv[1:]: importlib.import_module(name)"
    )
    result = subprocess.run([sys.executable, "-c", script, *LIGHT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
