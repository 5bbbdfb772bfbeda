"""Find installed plugins without importing any of them.

A plugin is a distribution with an entry point in the group ``deepinfer.plugins`` whose value is a top-level
package, and a manifest in that package. Only metadata and manifests are read here, so a plugin that is
broken, hostile or slow to import can always be listed. Nothing here raises: what is wrong becomes the
record's state and reason.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import importlib_metadata
from attrs import evolve, frozen
from packaging.utils import canonicalize_name

from deepinfer_core.plugins.manifest import FILE_NAME, Component, Manifest, ManifestError, read_manifest

GROUP: Final = "deepinfer.plugins"
BUILTIN: Final = "core"
BUILTIN_MANIFEST: Final = Path(__file__).with_name("builtin.toml")

_UNKNOWN: Final = "unknown"

Found = Literal["available", "disabled", "incompatible", "broken"]


@frozen
class PluginRecord:
    """One installed plugin: who ships it, what it declares, and whether it can be used.

    folder: of its package, where that is known.
    """

    name: str
    distribution: str
    version: str
    package: str
    manifest: Manifest | None = None
    folder: Path | None = None
    state: Found = "available"
    reason: str = ""

    @property
    def owner(self) -> str:
        """The plugin and who ships it, for messages."""
        return f"{self.name!r} of {self.distribution} {self.version}"

    def components(self, seam: str | None = None) -> list[Component]:
        """What it declares, for one seam or all; nothing while its manifest cannot be read."""
        declared = self.manifest.components if self.manifest else ()
        return [component for component in declared if seam in (None, component.seam)]


def discover() -> tuple[PluginRecord, ...]:
    """Every installed plugin, the built-in one first, the others by name and distribution."""
    seen: set[str] = set()
    found: list[PluginRecord] = []
    for distribution in importlib_metadata.distributions():
        name, version = _identity(distribution)
        key = canonicalize_name(name)
        if key not in seen or name == _UNKNOWN:  # else hidden by another one earlier on the path
            seen.add(key)
            found += _records(distribution, name, version)
    found.sort(key=lambda record: (record.name, record.distribution, record.version))
    return (_builtin(), *_mark_duplicates(found))


def _builtin() -> PluginRecord:
    """The record of the components that the core itself ships."""
    try:
        version = importlib_metadata.version("deepinfer-core")
    except importlib_metadata.PackageNotFoundError:
        version = _UNKNOWN
    manifest = read_manifest(BUILTIN_MANIFEST)
    return PluginRecord(BUILTIN, "deepinfer-core", version, "deepinfer_core", manifest, BUILTIN_MANIFEST.parents[1])


def _identity(distribution: Any) -> tuple[str, str]:
    """Name and version of a distribution. Its metadata are read once and only as far as these."""
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        head = text.partition("\n\n")[0].splitlines()
        fields = dict(line.split(": ", 1) for line in head if line.startswith(("Name: ", "Version: ")))
        return fields["Name"].strip(), fields["Version"].strip()
    except Exception:  # damaged metadata
        return _UNKNOWN, _UNKNOWN


def _records(distribution: Any, name: str, version: str) -> list[PluginRecord]:
    try:
        points = distribution.entry_points.select(group=GROUP)
        return [_record(PluginRecord(point.name, name, version, point.value)) for point in points]
    except Exception as error:
        reason = f"the entry points of {name} {version} are damaged ({type(error).__name__}: {error}); reinstall it"
    with suppress(Exception):  # it cannot be read at all
        if GROUP in (distribution.read_text("entry_points.txt") or ""):
            return [PluginRecord(name, name, version, "", state="broken", reason=reason)]
    return []


def _record(record: PluginRecord) -> PluginRecord:
    """With what the manifest says."""
    try:
        path = _manifest_path(record.package)
        record = evolve(record, folder=path.parent)
        manifest = read_manifest(path)
        if manifest.name != record.name:
            raise ManifestError(f"the manifest's name {manifest.name!r} differs from the entry point's")
    except ManifestError as error:
        return evolve(record, state="broken", reason=str(error))
    except Exception as error:  # a finder or a path of another package may raise anything
        return evolve(record, state="broken", reason=f"{type(error).__name__}: {error}")
    reason = manifest.incompatibility()
    return evolve(record, manifest=manifest, state="incompatible" if reason else "available", reason=reason or "")


def _manifest_path(package: str) -> Path:
    # find_spec of a dotted name would import the parent package.
    if not package.isidentifier():
        raise ManifestError(f"the entry point must name a top-level package, got {package!r}")
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ManifestError(f"the package {package!r} is not importable; reinstall or uninstall the distribution")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in folders:
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise ManifestError(f"no {FILE_NAME} in the package {package!r} ({', '.join(map(str, folders)) or 'a module'})")


def _mark_duplicates(records: Iterable[PluginRecord]) -> list[PluginRecord]:
    groups: dict[str, list[PluginRecord]] = defaultdict(list)
    for record in records:
        groups[record.name].append(record)
    result = []
    for name, group in groups.items():
        reason = ""
        if name == BUILTIN:
            reason = f"the name {BUILTIN!r} is reserved"
        elif len(group) > 1:
            owners = " and ".join(f"{r.distribution} {r.version}" for r in group)
            reason = f"the plugin name {name!r} is claimed by {owners}; uninstall one of them"
        result += [evolve(r, state="broken", reason=reason) for r in group] if reason else group
    return result
