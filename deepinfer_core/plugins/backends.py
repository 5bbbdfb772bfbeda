"""Choosing the backend: the only seam that looks at the machine."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins.discovery import PluginRecord
from deepinfer_core.plugins.failure import Source, failure
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.probe import run_probes
from deepinfer_core.plugins.selection import components_for

CPU = "cpu"


def autodetect(offers: Sequence[tuple[PluginRecord, Component]]) -> tuple[PluginRecord, str]:
    """The only backend besides the CPU's whose probe succeeds, else the CPU's; and the reason.

    Raises PluginError when neither is installed.
    """
    probes = {component.probe: (record, component) for record, component in offers if component.probe}
    answers = run_probes(list(probes)) if probes else {}
    working = [probes[probe] for probe, refusal in answers.items() if refusal is None]
    if len(working) == 1:
        return working[0][0], "the only backend besides the CPU's whose probe succeeds"
    cpu = [record for record, component in offers if component.name == CPU]
    if not cpu:
        raise PluginError("no backend is installed: pip install deepinfer-plugin-cpu, or name one by backend=")
    if working:
        names = ", ".join(component.name for _, component in working)
        return cpu[0], f"several other backends could run ({names}); choose one by backend="
    return cpu[0], "default backend"


def require_probe(record: PluginRecord, source: Source) -> None:
    """Raise PluginError when a backend that was named says that it cannot run here."""
    for component in components_for(record, "backend"):
        refusal = run_probes([component.probe])[component.probe] if component.probe else None
        if refusal is not None:
            raise failure("probe", refusal, record, source)
