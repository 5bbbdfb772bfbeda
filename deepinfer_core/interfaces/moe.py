"""The ``moe`` seam: other implementations of the backend's mixture-of-experts ops: router, activation, executor.

It works as the ``attention`` seam does, on the ops in :data:`MOE_OPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

#: Ops of the family: what a component of the seam may replace.
MOE_OPS: Final = ("route_experts", "moe_experts", "swiglu")


@runtime_checkable
class Moe(Protocol):
    """A component of the seam. Rows stay independent: a row's result depends on that row only."""

    def override(self, kernels: Any, device: torch.device) -> Mapping[str, Callable[..., Any]]:
        """Replacements by op, names from :data:`MOE_OPS`. Called once per worker, before the model is built.

        kernels: the backend's namespace, for the ops that a replacement itself calls.
        device: where the tensors will be.

        An exception, an op that is not of the family, and a replacement that cannot be called stop start-up. What a
        replacement raises later ends the requests of its step.
        """
        ...
