"""The component of the ``model`` seam. Torch-free until a model is built, so that configs are read quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .config import DeepseekV41Config

if TYPE_CHECKING:
    from deepinfer_core.interfaces.model import ModelContext

    from .model import TextModel


class DeepseekV41:
    """The architecture DeepseekV41ForCausalLM."""

    def translate_config(self, hf_config: Mapping[str, Any]) -> DeepseekV41Config:
        """See :class:`deepinfer_core.interfaces.model.Architecture`."""
        return DeepseekV41Config.from_hf(hf_config)

    def build(self, config: DeepseekV41Config, context: ModelContext) -> TextModel:
        """See :class:`deepinfer_core.interfaces.model.Architecture`."""
        import torch

        from .model import TextModel

        with torch.device("meta"):
            return TextModel(config, context)
