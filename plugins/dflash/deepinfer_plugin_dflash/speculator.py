"""The component of the ``speculator`` seam. Torch-free until a drafter is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import DrafterConfig

if TYPE_CHECKING:
    from deepinfer_core.interfaces.model import Model, ModelContext

    from .drafter import BlockDrafter


class DFlash:
    """Drafts for models whose config describes DSpark stages."""

    def num_drafts(self, config: Any) -> int:
        """See :class:`deepinfer_core.interfaces.speculator.Speculator`."""
        dspark = getattr(config, "dspark", None)
        return 0 if dspark is None else dspark.block_size  # type: ignore[no-any-return]

    def build(self, config: Any, model: Model, context: ModelContext) -> BlockDrafter:
        """See :class:`deepinfer_core.interfaces.speculator.Speculator`."""
        import torch

        from .drafter import BlockDrafter

        settings = DrafterConfig.of(config)
        with torch.device("meta"):
            return BlockDrafter(settings, model, context)
