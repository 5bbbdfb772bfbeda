"""Conformance of ``multimodal`` components."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.interfaces.model import Architecture
from deepinfer_core.interfaces.multimodal import Encoder, Multimodal, PreparedItem
from deepinfer_core.model_loader import materialize
from deepinfer_core.testing.beside_model import BesideModelSuite
from deepinfer_core.testing.kernels import same_bits
from deepinfer_core.testing.model import load_model
from deepinfer_core.testing.protocols import problems

#: What a prompt may hold, whoever sent it.
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    float("nan"),
    "",
    "nonsense",
    b"",
    b"\xff" * 9,
    [],
    [None],
    [[]],
    {},
    object(),
)


class MultimodalSuite(BesideModelSuite):
    """Set :attr:`items`; a component of a certain architecture also overrides ``architecture`` and ``checkpoint``."""

    seam = "multimodal"
    items: ClassVar[Sequence[tuple[str, Any]]] = ()
    """``(modality, item)`` of at least two different items that the component takes."""

    @pytest.fixture
    def loaded(self, architecture: Architecture, checkpoint: Path, backend: Backend) -> Any:
        """Model, config and context."""
        return load_model(architecture, checkpoint, backend)

    @pytest.fixture
    def prepared(self, component: Multimodal, loaded: Any) -> list[PreparedItem]:
        """The items, prepared."""
        if not self.items:
            pytest.skip("what the component takes is unknown: set the attribute 'items'")
        return [component.prepare(item, modality, loaded[1]) for modality, item in self.items]

    @pytest.fixture
    def encoder(self, component: Multimodal, loaded: Any, backend: Backend) -> Encoder:
        """The encoder, with random weights."""
        model, config, context = loaded
        encoder = component.build(config, model, context)
        allocated = [name for name, parameter in encoder.module.named_parameters() if not parameter.is_meta]
        assert allocated == [], "parameters that are not on the meta device"
        materialize(encoder.module, backend.device)
        generator = torch.Generator().manual_seed(0)
        for parameter in encoder.module.parameters():
            parameter.data.copy_(
                torch.randn(parameter.shape, generator=generator) / max(parameter.shape[-1:], default=1)
            )
        return encoder

    def test_items_are_prepared(self, prepared: list[PreparedItem]) -> None:
        """With rows, a key, and arrays that nobody can write to."""
        for (modality, _), item in zip(self.items, prepared, strict=True):
            assert isinstance(item, PreparedItem) and item.modality == modality
            assert type(item.num_tokens) is int and item.num_tokens >= 1 and isinstance(item.key, bytes)
            writeable = [name for name, array in item.arrays.items() if array.flags.writeable]
            assert writeable == [], "arrays that can be written to"

    def test_keys_tell_items_apart(self, component: Multimodal, prepared: list[PreparedItem], loaded: Any) -> None:
        """Equal for equal items, different for different ones: caches know items by them."""
        again = [component.prepare(item, modality, loaded[1]).key for modality, item in self.items]
        assert again == [item.key for item in prepared]
        assert len(set(again)) == len(again), "different items have one key"

    def test_anything_else_is_refused_with_a_value_error(
        self, component: Multimodal, prepared: list[PreparedItem], loaded: Any
    ) -> None:
        """An item is outside data."""
        for modality in {modality for modality, _ in self.items}:
            for item in HOSTILE:
                try:
                    component.prepare(item, modality, loaded[1])
                except ValueError as error:
                    assert str(error), f"the refusal of {item!r} must say what was expected"

    def test_encoders_fill_their_protocol(self, encoder: Encoder, loaded: Any) -> None:
        """And their weights have names of their own."""
        assert problems(encoder, Encoder) == []
        names = [spec.name for spec in encoder.weight_specs()]
        assert len(set(names)) == len(names) and not set(names) & {spec.name for spec in loaded[0].weight_specs()}

    def test_rows_are_those_announced_and_independent(
        self, encoder: Encoder, prepared: list[PreparedItem], loaded: Any, backend: Backend
    ) -> None:
        """``[num_tokens, hidden]`` bf16, the same bits alone, together and in another order."""
        token = torch.zeros(1, dtype=torch.int64, device=backend.device)
        hidden = loaded[0].embed_tokens(token).shape[1]
        together: list[Tensor] = [rows.cpu() for rows in encoder.encode(prepared)]
        shapes = [(tuple(rows.shape), rows.dtype) for rows in together]
        assert shapes == [((item.num_tokens, hidden), torch.bfloat16) for item in prepared]
        assert same_bits([encoder.encode([item])[0].cpu() for item in prepared], together), "alone"
        reverse = [rows.cpu() for rows in encoder.encode(prepared[::-1])][::-1]
        assert same_bits(reverse, together), "in another order"
