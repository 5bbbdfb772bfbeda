"""The ``attention`` seam: other implementations of the backend's attention ops.

A model calls ops by name from one namespace. A component of this seam replaces some of those in
:data:`ATTENTION_OPS`; all others stay the backend's. What an op takes and returns is its interface's to say
(``deepinfer_kernels.interface``), so a replacement fits every model that calls the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

#: Ops of the family: what a component of the seam may replace.
ATTENTION_OPS: Final = (
    "compress_pool", "store_compress_state", "index_topk", "sparse_attention", "draft_attention", "paged_attention",
)  # fmt: skip


@runtime_checkable
class Attention(Protocol):
    """A component of the seam. Rows stay independent: a row's result depends on its own sequence only."""

    def override(self, kernels: Any, device: torch.device) -> Mapping[str, Callable[..., Any]]:
        """Replacements by op, names from :data:`ATTENTION_OPS`. Called once per worker, before the model is built.

        kernels: the backend's namespace, for the ops that a replacement itself calls.
        device: where the tensors will be.

        An exception, an op that is not of the family, and a replacement that cannot be called stop start-up. What a
        replacement raises later ends the requests of its step.
        """
        ...
