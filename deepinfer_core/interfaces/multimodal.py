"""The ``multimodal`` seam: pictures, sound and the like become rows that stand in a prompt for them.

A component's manifest lists its ``modalities`` (the keys of ``multi_modal_data`` in a prompt). One item goes two
steps: :meth:`Multimodal.prepare`, on the driver, checks and decodes it; :meth:`Encoder.encode`, on the worker, turns
it into embeddings, which take the places of the embeddings of its placeholder tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from deepinfer_core.interfaces.model import Model, ModelContext
    from deepinfer_core.interfaces.weights import WeightSpec


@attrs.frozen(eq=False)
class PreparedItem:
    """One item, ready to be encoded.

    num_tokens: rows that it takes in the prompt, at least 1.
    key: equal for equal items: what a cache of prefixes or of embeddings knows it by.
    arrays: what :meth:`Encoder.encode` needs, by name; read-only.
    """

    modality: str
    num_tokens: int
    key: bytes
    arrays: Mapping[str, NDArray[np.generic]]


@runtime_checkable
class Encoder(Protocol):
    """An encoder on a device. Items are independent: an item's rows depend on it alone, bit for bit."""

    @property
    def module(self) -> torch.nn.Module:
        """The parameters, on the meta device until loaded."""

    def weight_specs(self) -> Iterable[WeightSpec]:
        """Every tensor it needs from the checkpoint."""

    def unused_tensor(self, name: str) -> str | None:
        """Why a checkpoint tensor that no spec names may be left out, or None if it may not."""

    def encode(self, items: Sequence[PreparedItem]) -> Sequence[Tensor]:
        """``[num_tokens, hidden]`` bf16 of each item. Called at most once per step."""


@runtime_checkable
class Multimodal(Protocol):
    """A component of the seam."""

    def prepare(self, item: Any, modality: str, config: Any) -> PreparedItem:
        """Check and decode one item of a prompt. ``config`` is the architecture's own.

        Called before the request is accepted. Raises ValueError, with the value, what was expected and the remedy,
        to refuse it; an item is outside data and may be anything.
        """
        ...

    def build(self, config: Any, model: Model, context: ModelContext) -> Encoder:
        """The encoder on the meta device, for ``model``. Raises ConfigError if the config has none."""
        ...
