"""Kernel families as namespaces: ``ops.cpu.rms_norm(x, weight, eps)``, ``ops.reference.rms_norm(…)``.

A family is imported when it is first named, an op when it is first used; each call's arguments are checked
by :mod:`deepinfer_kernels.interface` before the implementation sees them.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from deepinfer_kernels.errors import KernelUnavailableError

#: Where each family's implementations live.
FAMILIES = {"cpu": "deepinfer_kernels.cpu", "reference": "deepinfer_kernels.reference"}
#: What a user installs for a family that this distribution does not carry.
PROVIDERS = {
    "cuda": "install deepinfer-plugin-sm100 on a machine with an NVIDIA GPU",
    "ascend": "install deepinfer-plugin-ascend on a machine with a Huawei NPU",
}


class KernelFamily:
    """The ops of one family, resolved one by one on first use."""

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name = name
        self._module = module

    def __repr__(self) -> str:
        return f"KernelFamily({self.name!r})"

    def examples(self, seed: int = 0) -> list[Any]:
        """Calls of every op with small random arguments: :class:`deepinfer_kernels.examples.Example`."""
        found: list[Any] = importlib.import_module("deepinfer_kernels.examples").examples(seed)
        return found

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_"):
            raise AttributeError(op)
        interface = importlib.import_module("deepinfer_kernels.interface")
        if op not in interface.__all__:
            near = difflib.get_close_matches(op, interface.__all__, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"there is no op {op!r}{hint}")
        implementation = getattr(self._module, op, None)
        if implementation is None:
            raise KernelUnavailableError(op, self.name, PROVIDERS.get(self.name, "use the 'reference' family"))
        check = getattr(interface, op)

        @functools.wraps(implementation)
        def call(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return implementation(*args, **kwargs)

        setattr(self, op, call)
        return call


def family(name: str) -> KernelFamily:
    """The family ``name``; raises :class:`KernelUnavailableError` if it is not there."""
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise KernelUnavailableError("*", name, PROVIDERS.get(name, f"known families: {known}"))
    try:
        module = importlib.import_module(FAMILIES[name])
    except ImportError as error:
        raise KernelUnavailableError("*", name, f"importing {FAMILIES[name]} failed: {error}") from error
    loaded = KernelFamily(name, module)
    globals()[name] = loaded
    return loaded


def __getattr__(name: str) -> KernelFamily:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return family(name)
