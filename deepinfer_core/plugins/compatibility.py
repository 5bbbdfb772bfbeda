"""What may run together: the ``requires`` and ``conflicts`` of the active components, checked at start-up."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.errors import PluginError
from deepinfer_core.plugins.manifest import Term, parse_term
from deepinfer_core.plugins.selection import Selected


def check_together(active: Sequence[Selected]) -> None:
    """Raise PluginError naming both sides when active components cannot run together, or one lacks what it needs."""
    for selected in active:
        for text in selected.conflicts:
            term = parse_term("conflicts", text)
            for other in _matching(term, active):
                if other is not selected:
                    raise PluginError(
                        f"{_describe(selected)} cannot run together with {_describe(other)}: it declares "
                        f"conflicts = [{text!r}]; leave out one of them"
                    )
        for text in selected.requires:
            term = parse_term("requires", text)
            if not _matching(term, active):
                present = [_describe(other) for other in active if other.seam == term.seam]
                raise PluginError(
                    f"{_describe(selected)} needs {text!r}, which no active component provides (active for "
                    f"{term.seam!r}: {' and '.join(present) or 'none'}); select one that does, or leave it out"
                )


def _matching(term: Term, active: Sequence[Selected]) -> list[Selected]:
    # The core's own defaults can be replaced but not left out, so only a term that names one means it.
    return [
        other
        for other in active
        if term.matches(other.seam, other.name, other.capabilities)
        and (other.source != "builtin" or term.component is not None or term.capability is not None)
    ]


def _describe(selected: Selected) -> str:
    return f"the {selected.seam} {selected.owner}"
