"""The ops a model gets: the backend's, with those that ``attention`` and ``moe`` components put in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from deepinfer_core.errors import PluginError, nearest
from deepinfer_core.interfaces.attention import ATTENTION_OPS
from deepinfer_core.interfaces.moe import MOE_OPS

if TYPE_CHECKING:
    from deepinfer_core.interfaces.backend import Backend
    from deepinfer_core.plugins.manager import PluginManager

#: By seam, the ops that its component may replace.
OP_FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {"attention": ATTENTION_OPS, "moe": MOE_OPS}


class MergedKernels:
    """A backend's namespace in which some ops are others'. Names are resolved once; a call costs nothing more."""

    def __init__(self, kernels: Any, replacements: Mapping[str, Callable[..., Any]]) -> None:
        self._kernels = kernels
        self.__dict__.update(replacements)

    def __getattr__(self, op: str) -> Any:
        if op.startswith("_"):
            raise AttributeError(op)
        value = getattr(self._kernels, op)
        self.__dict__[op] = value
        return value


def model_kernels(manager: PluginManager, backend: Backend) -> Any:
    """The backend's ops, with those of active ``attention`` and ``moe`` components; the backend's own without any.

    Raises PluginError, naming seam and component, for what may not be replaced and for what cannot be called.
    """
    replacements: dict[str, Callable[..., Any]] = {}
    for seam in OP_FAMILIES:
        for name, component in manager.named(seam).items():
            replacements.update(_overrides(seam, name, component, backend))
    return MergedKernels(backend.kernels, replacements) if replacements else backend.kernels


def _overrides(seam: str, name: str, component: Any, backend: Backend) -> Mapping[str, Callable[..., Any]]:
    where = f"{seam} component {name!r}"
    try:
        found = component.override(backend.kernels, backend.device)
    except Exception as error:
        raise PluginError(f"{where} failed: {type(error).__name__}: {error}; leave its plugin out") from error
    return check_overrides(found, seam, where)


def check_overrides(found: object, seam: str, where: str) -> Mapping[str, Callable[..., Any]]:
    """What ``override`` returned, if it may. Raises PluginError; ``where`` says whose it is."""
    if not isinstance(found, Mapping):
        raise PluginError(f"{where}: override must return a mapping from ops to functions, got {type(found).__name__}")
    family = OP_FAMILIES[seam]
    for op, function in found.items():
        if op not in family:
            raise PluginError(f"{where} may replace {', '.join(family)}, got {op!r}{nearest(str(op), family)}")
        if not callable(function):
            raise PluginError(f"{where}: the replacement of {op!r} must be callable, got {function!r}")
    return found
