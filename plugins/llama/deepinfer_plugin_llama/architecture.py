"""The component of the ``model`` seam. Torch-free until a model is built, so that configs are read quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .config import LlamaConfig

if TYPE_CHECKING:
    from deepinfer_core.interfaces.model import ModelContext

    from .model import DenseModel


class Llama:
    """The architectures of :data:`.families.FAMILIES`."""

    def translate_config(self, hf_config: Mapping[str, Any]) -> LlamaConfig:
        """See :class:`deepinfer_core.interfaces.model.Architecture`."""
        return LlamaConfig.from_hf(hf_config)

    def build(self, config: LlamaConfig, context: ModelContext) -> DenseModel:
        """See :class:`deepinfer_core.interfaces.model.Architecture`."""
        import torch

        from .model import DenseModel

        with torch.device("meta"):
            return DenseModel(config, context)
