"""``deepinfer_plugin.toml``: what a plugin provides, readable without importing it.

::

    name = "deepseek"          # the name of the entry point
    api = ">=1.0,<2"           # seam versions it was written for
    native = ["package._ext"]  # optional, extension modules that use the core's native interface

    [[component]]
    seam = "model"
    name = "deepseek-v4"
    object = "package.module:Object"
    roles = ["driver", "worker"]                            # optional, these are the default
    config = "package.config:Config"                        # optional, attrs class the object is called with
    probe = "package.probe:function"                        # optional, backends only
    before = ["name"]                                       # optional order among chained components
    after = ["name"]
    requires = ["backend.graphs"]                           # optional, what must be active with it
    conflicts = ["speculator"]                              # optional, what must not
    capabilities = { architectures = ["SomeForCausalLM"] }  # optional
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import field, fields, frozen

from deepinfer_core.errors import PluginError, nearest
from deepinfer_core.interfaces.seams import SEAMS, Seam

FILE_NAME: Final = "deepinfer_plugin.toml"
ROLES: Final = ("driver", "worker")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class ManifestError(PluginError):
    """A manifest that breaks a rule. The message names the key, its value and the rule."""


@frozen
class Term:
    """What ``requires`` and ``conflicts`` speak of: ``seam``, ``seam:component``, ``seam.capability`` or
    ``seam.capability=value``.
    """

    text: str
    seam: str
    component: str | None
    capability: str | None
    value: str | None

    def matches(self, seam: str, name: str, capabilities: Mapping[str, Any]) -> bool:
        """Whether an active component is what the term speaks of."""
        if seam != self.seam or self.component not in (None, name):
            return False
        if self.capability is None:
            return True
        found = capabilities.get(self.capability)
        if self.value is None:
            return bool(found)
        return self.value in [_as_text(item) for item in (found if isinstance(found, list) else [found])]


_TERM = re.compile(r"(\w+)(?::([A-Za-z0-9][A-Za-z0-9._-]*)|\.(\w+)(?:=(.+))?)?", re.ASCII)


def parse_term(key: str, text: str) -> Term:
    """Read one entry of ``requires`` or ``conflicts``. Raises ManifestError."""
    match = _TERM.fullmatch(text)
    if match is None:
        rule = "'seam', 'seam:component', 'seam.capability' or 'seam.capability=value'"
        raise ManifestError(f"{key} must be {rule}, got {text!r}")
    if match[1] not in SEAMS:
        raise ManifestError(f"{key}: unknown seam {match[1]!r}{nearest(match[1], SEAMS)} (known: {', '.join(SEAMS)})")
    return Term(text, match[1], match[2], match[3], match[4])


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@frozen(kw_only=True)
class Component:
    """One thing a plugin provides for one seam."""

    seam: str = field()
    name: str = field()
    object: str = field()
    roles: tuple[str, ...] = field(default=ROLES)
    capabilities: Mapping[str, Any] = field(factory=dict)
    config: str | None = field(default=None)
    probe: str | None = field(default=None)
    before: tuple[str, ...] = field(default=())
    after: tuple[str, ...] = field(default=())
    requires: tuple[str, ...] = field(default=())
    conflicts: tuple[str, ...] = field(default=())

    @seam.validator
    def _check_seam(self, _: Any, value: str) -> None:
        if value not in SEAMS:
            raise ManifestError(f"unknown seam {value!r}{nearest(value, SEAMS)} (known: {', '.join(SEAMS)})")

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        _require(_NAME.fullmatch(value), "component name", value, "letters, digits, '.', '_' and '-'")

    @object.validator
    def _check_object(self, _: Any, value: str) -> None:
        _require(_OBJECT.fullmatch(value), "object", value, "'package.module:Object'")

    @roles.validator
    def _check_roles(self, _: Any, value: tuple[str, ...]) -> None:
        _require(value and set(value) <= set(ROLES), "roles", list(value), f"a non-empty part of {list(ROLES)}")

    @config.validator
    def _check_config(self, _: Any, value: str | None) -> None:
        _require(value is None or _OBJECT.fullmatch(value), "config", value, "'package.module:Class'")

    @requires.validator
    def _check_requires(self, _: Any, value: tuple[str, ...]) -> None:
        for text in value:
            parse_term("requires", text)

    @conflicts.validator
    def _check_conflicts(self, _: Any, value: tuple[str, ...]) -> None:
        for text in value:
            parse_term("conflicts", text)

    @probe.validator
    def _check_probe(self, _: Any, value: str | None) -> None:
        if value is None:
            return
        _require(_OBJECT.fullmatch(value), "probe", value, "'package.module:function'")
        _require(self.seam == "backend", "probe", value, "absent: only the backend seam is probed")

    @property
    def keys(self) -> tuple[str, ...]:
        """The entries under which a registry seam finds this component, such as its architectures."""
        key = SEAMS[self.seam].key
        return tuple(self.capabilities.get(key, ())) if key else ()

    @capabilities.validator
    def _check_capabilities(self, _: Any, value: Mapping[str, Any]) -> None:
        for name, entry in value.items():
            items = entry if isinstance(entry, list) else [entry]
            plain = all(isinstance(item, str | int | float | bool) for item in items)
            _require(plain, f"capabilities.{name}", entry, "a plain value or a list of plain values")
        key = SEAMS[self.seam].key
        if key:
            _require(_is_names(value.get(key)), f"capabilities.{key}", value.get(key), "a non-empty list of strings")


@frozen(kw_only=True)
class Manifest:
    """What one plugin provides and the seam versions it was written for."""

    name: str = field()
    api: str = field()
    components: tuple[Component, ...] = field()
    summary: str = ""
    native: tuple[str, ...] = field(default=())

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        _require(_NAME.fullmatch(value), "name", value, "letters, digits, '.', '_' and '-'")

    @api.validator
    def _check_api(self, _: Any, value: str) -> None:
        _bounds(value)

    @native.validator
    def _check_native(self, _: Any, value: tuple[str, ...]) -> None:
        for module in value:
            _require(_MODULE.fullmatch(module), "native", module, "the name of a module")

    @components.validator
    def _check_components(self, _: Any, value: tuple[Component, ...]) -> None:
        _require(value, "component", [], "at least one [[component]] table")
        seen: set[tuple[str, str]] = set()
        for component in value:
            key = (component.seam, component.name)
            _require(key not in seen, "component", component.name, f"unique within the seam {component.seam!r}")
            seen.add(key)

    def incompatibility(self) -> str | None:
        """Why this core cannot run the plugin (a seam's version outside ``api``), or None."""
        for component in self.components:
            seam = SEAMS[component.seam]
            if not _within(self.api, seam):
                found = f"{seam.version[0]}.{seam.version[1]}"
                return f"written for seam versions {self.api}; this core has {seam.name} {found}"
        return None


def read_manifest(path: Path) -> Manifest:
    """Read and check one manifest file. Raises ManifestError naming the file, the key and the rule."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return parse_manifest(data)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: not readable as UTF-8 TOML: {error}") from error


def parse_manifest(data: Mapping[str, Any]) -> Manifest:
    """Build a Manifest from parsed TOML. Raises ManifestError."""
    top = dict(data)
    tables = top.pop("component", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ManifestError("component must be an array of tables: write [[component]]")
    components = tuple(_build(Component, table, f"component {i + 1}: ") for i, table in enumerate(tables))
    if "components" in top:
        raise ManifestError("unknown key 'components'; write [[component]]")
    manifest: Manifest = _build(Manifest, {**top, "components": components}, "")
    return manifest


_TEXT = ("name", "api", "summary", "seam", "object", "config", "probe")
_LISTS = ("native", "roles", "before", "after", "requires", "conflicts")


def _build(cls: type[Any], table: Mapping[str, Any], where: str) -> Any:
    known = [attribute.name for attribute in fields(cls)]
    values = dict(table)
    for key, value in table.items():
        if key not in known:
            raise ManifestError(f"{where}unknown key {key!r}{nearest(key, known)}")
        if key in _TEXT and not isinstance(value, str):
            raise ManifestError(f"{where}{key} must be a string, got {value!r}")
        if key in _LISTS:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ManifestError(f"{where}{key} must be a list of strings, got {value!r}")
            values[key] = tuple(value)
        if key == "capabilities" and not isinstance(value, dict):
            raise ManifestError(f"{where}capabilities must be a table, got {value!r}")
    required = [a.name for a in fields(cls) if a.default is _NOTHING and a.name not in values]
    if required:
        raise ManifestError(f"{where}missing key {required[0]!r}")
    try:
        return cls(**values)
    except ManifestError as error:
        raise ManifestError(f"{where}{error}") from None


_NOTHING = fields(Manifest).name.default


def _is_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) and item for item in value)


def _require(condition: object, key: str, value: object, rule: str) -> None:
    if not condition:
        raise ManifestError(f"{key} must be {rule}, got {value!r}")


_CLAUSE = re.compile(r"(>=|<=|==|>|<)\s*(\d+)(?:\.(\d+))?")


@cache
def _bounds(api: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    clauses = []
    for part in api.split(","):
        match = _CLAUSE.fullmatch(part.strip())
        if match is None:
            raise ManifestError(f"api must be a range such as '>=1.0,<2', got {api!r}")
        clauses.append((match[1], (int(match[2]), int(match[3] or 0))))
    return tuple(clauses)


def _within(api: str, seam: Seam) -> bool:
    version = seam.version
    tests = {
        ">=": lambda bound: version >= bound,
        "<=": lambda bound: version <= bound,
        "==": lambda bound: version == bound,
        ">": lambda bound: version > bound,
        "<": lambda bound: version < bound,
    }
    return all(tests[operator](bound) for operator, bound in _bounds(api))
