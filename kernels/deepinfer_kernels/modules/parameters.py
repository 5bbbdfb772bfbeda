"""Parameters as checkpoints store them, and the linear layer over any storage format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from deepinfer_kernels.modules.settings import BlockSettings
from deepinfer_kernels.weights import SCALE_GROUP, DenseWeight, Fp4Weight, Fp8Weight, Weight

#: safetensors dtypes a checkpoint may use for each kind of parameter.
STORED_AS = {
    "bf16": ("BF16",),
    "f32": ("F32",),
    "e4m3": ("F8_E4M3",),
    "e8m0": ("F8_E8M0", "U8"),
    "e2m1": ("I8", "U8"),
}
_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
_EXPERT_STACK = re.compile(r"(.*\.ffn\.experts)\.(w[123])\.(weight|scale)$")


def parameter(kind: str, *shape: int) -> nn.Parameter:
    """An uninitialised parameter of a kind of :data:`STORED_AS`; codes and scales are held as bytes."""
    value = nn.Parameter(torch.empty(shape, dtype=_DTYPES.get(kind, torch.uint8)), requires_grad=False)
    value.stored_as = STORED_AS[kind]  # type: ignore[attr-defined]
    return value


class Norm(nn.Module):
    """An RMS norm's weight ``[D]``, bf16."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = parameter("bf16", dim)


class Linear(nn.Module):
    """A weight of ``storage`` ``bf16``, ``fp8`` or ``fp4``, or a stack of ``experts`` of them."""

    def __init__(self, inputs: int, outputs: int, storage: str = "bf16", experts: int | None = None) -> None:
        super().__init__()
        lead = () if experts is None else (experts,)
        self.storage = storage
        if storage == "bf16":
            self.weight = parameter("bf16", *lead, outputs, inputs)
        elif storage == "fp8":
            self.weight = parameter("e4m3", *lead, outputs, inputs)
            self.scale = parameter("e8m0", *lead, -(-outputs // SCALE_GROUP), -(-inputs // SCALE_GROUP))
        else:
            self.weight = parameter("e2m1", *lead, outputs, inputs // 2)
            self.scale = parameter("e8m0", *lead, outputs, inputs // SCALE_GROUP)

    @property
    def quantized(self) -> bool:
        """Whether inputs are to be rounded to e4m3 (they are wherever the weight is quantised)."""
        return self.storage != "bf16"

    def kernel_weight(self) -> Weight:
        """The weight as kernels take it."""
        if self.storage == "bf16":
            return DenseWeight(self.weight)
        return (Fp8Weight if self.storage == "fp8" else Fp4Weight)(self.weight, self.scale)

    def apply_to(self, kernels: Any, x: Tensor) -> Tensor:
        """``x [N,K]`` bf16 → bf16 ``[N,M]``, its inputs quantised if the weight is."""
        if self.quantized:
            return kernels.linear_quantized(x, self.kernel_weight())  # type: ignore[no-any-return]
        return kernels.linear(x, self.kernel_weight(), torch.bfloat16)  # type: ignore[no-any-return]


def dense_storage(settings: BlockSettings) -> str:
    """Storage of dense linears."""
    return "fp8" if settings.quantization else "bf16"


def expert_storage(settings: BlockSettings) -> str:
    """Storage of routed experts."""
    return "fp4" if settings.quantization else "bf16"


def checkpoint_tensors(module: nn.Module) -> Iterator[tuple[str, str, tuple[int, ...], tuple[str, ...]]]:
    """``(published name, parameter, leading indices, accepted safetensors dtypes)`` of all that fills ``module``.

    Published names are the parameters' own, but for experts, which are stacked here and apart there.
    """
    for name, value in module.named_parameters():
        dtypes = value.stored_as  # type: ignore[attr-defined]
        stack = _EXPERT_STACK.match(name)
        if stack is None:
            yield name, name, (), dtypes
            continue
        experts, matrix, part = stack.groups()
        for expert in range(value.shape[0]):
            yield f"{experts}.{expert}.{matrix}.{part}", name, (expert,), dtypes
