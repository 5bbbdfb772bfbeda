"""Choosing the backend: the only seam that looks at the machine."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.failure import failure
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.probe import run_probes
from deepinfer_core.plugins.selection import Selected


def autodetect(offers: Sequence[tuple[PluginRecord, Component]]) -> tuple[PluginRecord, str]:
    """The only backend besides the default one whose probe succeeds, else the default; and the reason.

    Raises PluginError when neither is installed, or several are the default.
    """
    probes = {component.probe: (record, component) for record, component in offers if component.probe}
    answers = run_probes(list(probes)) if probes else {}
    working = [probes[probe] for probe, refusal in answers.items() if refusal is None and not probes[probe][1].default]
    if len(working) == 1:
        return working[0][0], "the only backend besides the default one whose probe succeeds"
    defaults = [record for record, component in offers if component.default]
    if len(defaults) != 1:
        installed = ", ".join(component.name for _, component in offers) or "none"
        owners = " and ".join(record.owner for record in defaults) or "no installed backend"
        raise PluginError(f"{owners} would be the default backend (installed: {installed}); name one by backend=")
    if working:
        names = ", ".join(component.name for _, component in working)
        return defaults[0], f"several other backends could run ({names}); choose one by backend="
    return defaults[0], "default backend"


def require_probe(selected: Selected) -> None:
    """Raise PluginError when a backend that was named says that it cannot run here."""
    probe = selected.component.probe
    refusal = run_probes([probe])[probe] if probe else None
    if refusal is not None:
        raise failure("probe", refusal, selected.record, selected.source)
