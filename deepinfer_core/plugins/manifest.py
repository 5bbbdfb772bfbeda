"""``deepinfer_plugin.toml``: what a plugin provides, readable without importing it.

::

    name = "acme"              # the name of the entry point
    api = ">=1.0,<2"           # seam versions it was written for
    native = ["package._ext"]  # optional, extension modules that use the core's native interface

    [[component]]
    seam = "model"
    name = "acme-v4"
    object = "package.module:Object"
    roles = ["driver", "worker"]                            # optional, these are the default
    config = "package.config:Config"                        # optional, attrs class the object is called with
    probe = "package.probe:function"                        # optional, backends only
    default = true                                          # optional, taken where nothing selected fills the seam
    before = ["name"]                                       # optional order among chained components
    after = ["name"]
    requires = ["backend.device_type=cpu"]                  # optional, what must be active with it
    conflicts = ["speculator"]                              # optional, what must not
    capabilities = { architectures = ["SomeForCausalLM"] }  # optional
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import NOTHING, field, fields, frozen
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from deepinfer_core.errors import PluginError, nearest
from deepinfer_core.interfaces.seams import SEAMS

FILE_NAME: Final = "deepinfer_plugin.toml"
ROLES: Final = ("driver", "worker")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_OBJECT = re.compile(rf"{_MODULE.pattern}:{_MODULE.pattern}", re.ASCII)
_TERM = re.compile(rf"(\w+)(?::({_NAME.pattern})|\.(\w+)(?:=(.+))?)?", re.ASCII)


class ManifestError(PluginError):
    """A manifest that breaks a rule. The message names the key, its value and the rule."""


@frozen
class Term:
    """What ``requires`` and ``conflicts`` speak of: ``seam``, ``seam:component``, ``seam.capability`` or
    ``seam.capability=value``.
    """

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


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_term(key: str, text: str) -> Term:
    """Read one entry of ``requires`` or ``conflicts``. Raises ManifestError."""
    match = _TERM.fullmatch(text)
    if match is None:
        rule = "'seam', 'seam:component', 'seam.capability' or 'seam.capability=value'"
        raise ManifestError(f"{key} must be {rule}, got {text!r}")
    _check_seam(match[1], f"{key}: ")
    return Term(*match.groups())


@frozen(kw_only=True)
class Component:
    """One thing a plugin provides for one seam; of a Python object, what its attributes say."""

    seam: str
    name: str
    object: str
    roles: tuple[str, ...] = ROLES
    capabilities: Mapping[str, Any] = field(factory=dict)
    config: str | None = None
    probe: str | None = None
    default: bool = False
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The entries under which a registry seam finds this component, such as its architectures."""
        key = SEAMS[self.seam].key
        return tuple(self.capabilities.get(key, ())) if key else ()


@frozen(kw_only=True)
class Manifest:
    """What one plugin provides and the seam versions it was written for."""

    name: str
    api: str
    components: tuple[Component, ...]
    summary: str = ""
    native: tuple[str, ...] = ()

    def incompatibility(self) -> str | None:
        """Why this core cannot run the plugin (a seam's version outside ``api``), or None."""
        for seam in (SEAMS[component.seam] for component in self.components):
            version = ".".join(map(str, seam.version))
            if version not in SpecifierSet(self.api):
                return f"written for seam versions {self.api}; this core has {seam.name} {version}"
        return None


def read_manifest(path: Path) -> Manifest:
    """Read and check one manifest file. Raises ManifestError naming the file, the key and the rule."""
    try:
        return parse_manifest(tomllib.loads(path.read_text(encoding="utf-8")))
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: not readable as UTF-8 TOML: {error}") from error


def parse_manifest(data: Mapping[str, Any]) -> Manifest:
    """Build a Manifest from parsed TOML. Raises ManifestError."""
    top = dict(data)
    tables = top.pop("component", [])
    if "components" in top or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ManifestError("component must be an array of tables: write [[component]]")
    components = tuple(_component(table, number) for number, table in enumerate(tables, start=1))
    manifest: Manifest = _build(Manifest, top, components=components)
    _check_name("name", manifest.name)
    for module in manifest.native:
        _require(_MODULE.fullmatch(module), "native", module, "the name of a module")
    _require(_is_range(manifest.api), "api", manifest.api, "a range such as '>=1.0,<2'")
    _require(components, "component", [], "at least one [[component]] table")
    places = [(c.seam, c.name) for c in components]
    for seam, name in places:
        _require(places.count((seam, name)) == 1, "component", name, f"unique within the seam {seam!r}")
    return manifest


def _component(table: Mapping[str, Any], number: int) -> Component:
    try:
        component: Component = _build(Component, table)
        _check_component(component)
    except ManifestError as error:
        raise ManifestError(f"component {number}: {error}") from None
    return component


#: What a manifest must have for a field of this type.
_SHAPES: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "str": ("a string", lambda value: isinstance(value, str)),
    "str | None": ("a string", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": ("a list of strings", lambda value: isinstance(value, list) and _all(value, str)),
    "Mapping[str, Any]": ("a table", lambda value: isinstance(value, dict)),
}


def _all(values: list[Any], *types: type) -> bool:
    return all(isinstance(value, types) for value in values)


def _build(cls: type[Any], table: Mapping[str, Any], **made: object) -> Any:
    known = {attribute.name: attribute for attribute in fields(cls)}
    for key, value in table.items():
        if key not in known:
            raise ManifestError(f"unknown key {key!r}{nearest(key, known)}")
        rule, fits = _SHAPES[known[key].type]
        _require(fits(value), key, value, rule)
    for key, attribute in known.items():
        if attribute.default is NOTHING and key not in {**table, **made}:
            raise ManifestError(f"missing key {key!r}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}, **made)


def _check_component(component: Component) -> None:
    _check_seam(component.seam)
    _check_name("component name", component.name)
    _require(set(component.roles) <= set(ROLES) and component.roles, "roles", list(component.roles),
             f"a non-empty part of {list(ROLES)}")  # fmt: skip
    for key, what in (("object", "Object"), ("config", "Class"), ("probe", "function")):
        path = getattr(component, key)
        _require(path is None or _OBJECT.fullmatch(path), key, path, f"'package.module:{what}'")
    is_backend = component.seam == "backend"
    _require(is_backend or not component.probe, "probe", component.probe, "absent: only the backend seam is probed")
    is_exclusive = SEAMS[component.seam].kind == "exclusive"
    _require(is_exclusive or not component.default, "default", True, "absent: only an exclusive seam has a default")
    for list_key in ("requires", "conflicts"):
        for text in getattr(component, list_key):
            parse_term(list_key, text)
    for name, entry in component.capabilities.items():
        plain = _all(entry if isinstance(entry, list) else [entry], str, int, float)
        _require(plain, f"capabilities.{name}", entry, "a plain value or a list of plain values")
    registry_key = SEAMS[component.seam].key
    if registry_key:
        names = component.capabilities.get(registry_key)
        is_names = isinstance(names, list) and bool(names) and _all(names, str) and all(names)
        _require(is_names, f"capabilities.{registry_key}", names, "a non-empty list of strings")


def _check_seam(seam: str, where: str = "") -> None:
    if seam not in SEAMS:
        raise ManifestError(f"{where}unknown seam {seam!r}{nearest(seam, SEAMS)} (known: {', '.join(SEAMS)})")


def _check_name(key: str, name: str) -> None:
    _require(_NAME.fullmatch(name), key, name, "letters, digits, '.', '_' and '-'")


def _is_range(api: str) -> bool:
    try:
        return bool(SpecifierSet(api))
    except InvalidSpecifier:
        return False


def _require(condition: object, key: str, value: object, rule: str) -> None:
    if not condition:
        raise ManifestError(f"{key} must be {rule}, got {value!r}")
