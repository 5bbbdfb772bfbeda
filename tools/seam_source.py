"""Read the seams' modules as source: their public classes, members, types and docstrings. Imports none of them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

from deepinfer_core.interfaces.seams import SEAMS

ROOT = Path(__file__).resolve().parent.parent
HOOKS = "deepinfer_core.hookspecs"
#: Modules whose classes belong to a seam beside those in its protocol's own module.
SHARED = {
    "model": ["deepinfer_core.interfaces.cache", "deepinfer_core.interfaces.weights"],
    "grammar": ["deepinfer_core.interfaces.structured_output"],
}


@frozen
class Member:
    """A method, property or field. ``signature`` is what a caller writes and gets; ``key`` names it in its class."""

    key: str
    signature: str
    doc: str


@frozen
class Class:
    """A public class of a seam. ``is_protocol``: plugins implement it; otherwise the core makes it."""

    name: str
    module: str
    doc: str
    is_protocol: bool
    members: tuple[Member, ...]


@frozen
class Module:
    """A module of a seam. ``others``: its public functions, types and constants, as they are written."""

    name: str
    doc: str
    others: tuple[Member, ...]
    classes: tuple[Class, ...]


def modules_of(seam: str) -> list[Module]:
    """The modules in which a seam is specified; none while it is not."""
    if seam == "hooks":
        return [read_module(HOOKS)]
    protocol = SEAMS[seam].protocol
    if protocol is None:
        return []
    return [read_module(name) for name in [protocol.partition(":")[0], *SHARED.get(seam, ())]]


@cache
def read_module(name: str) -> Module:
    """Parse a module of the core."""
    path = ROOT / (name.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    comments = _comments_above(path)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    others = [member for node in tree.body for member in _other(node, comments)]
    return Module(name, _doc(tree), tuple(others), tuple(_class(node, name) for node in classes))


def _other(node: ast.stmt, comments: dict[int, str]) -> Iterator[Member]:
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        yield Member(node.name, _signature(node), _doc(node))
    key = _target(node)
    if key is not None and not key.startswith("_"):
        yield Member(key, ast.unparse(node), comments.get(node.lineno, ""))


def _target(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _comments_above(path: Path) -> dict[int, str]:
    """Comments ``#:`` by the line of the statement below them."""
    found: dict[int, str] = {}
    pending: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("#:"):
            pending.append(line.removeprefix("#:").strip())
        elif pending:
            found[number] = " ".join(pending)
            pending = []
    return found


def _class(node: ast.ClassDef, module: str) -> Class:
    is_protocol = any(ast.unparse(base) == "Protocol" for base in node.bases) or node.name == "HookSpecs"
    return Class(node.name, module, _doc(node), is_protocol, tuple(_members(node)))


def _members(node: ast.ClassDef) -> Iterator[Member]:
    for position, item in enumerate(node.body):
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            yield Member(item.name, _signature(item), _doc(item))
        key = _target(item) if isinstance(item, ast.AnnAssign) else None
        if isinstance(item, ast.AnnAssign) and key is not None and not key.startswith("_"):
            below = node.body[position + 1] if position + 1 < len(node.body) else None
            is_doc = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            doc = inspect.cleandoc(str(below.value.value)) if is_doc else ""  # type: ignore[union-attr]
            yield Member(key, f"{key}: {ast.unparse(item.annotation)}" + _default(item.value), doc)


def _default(value: ast.expr | None) -> str:
    """A field's default: what users need not give. Validators and converters are no part of the signature."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        value = given.get("default", given.get("factory"))
    return "" if value is None else f" = {ast.unparse(value)}"


def _signature(node: ast.FunctionDef) -> str:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if "property" in decorators:
        return f"{node.name}{returns.replace(' ->', ':')}"
    marks = "".join(f"@{d}\n" for d in decorators if d not in ("hookspec",))
    return f"{marks}{node.name}({ast.unparse(node.args)}){returns}"


def _doc(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")
