"""How arrays are handed to the extension."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.weights import DenseWeight, Fp8Weight, Weight

#: Storage formats as the extension numbers them.
_BF16, _F32, _FP8, _FP4 = range(4)


def array(x: Tensor) -> tuple[int, bool]:
    """``(address, is f32)`` of a bf16 or f32 tensor."""
    return x.data_ptr(), x.dtype == torch.float32


def address(x: Tensor | None) -> int:
    """Address of an optional tensor; 0 for None."""
    return 0 if x is None else x.data_ptr()


def native_weight(weight: Weight) -> tuple[int, int, int, int, int]:
    """``(format, data address, scale address, M, K)`` of a weight or of a stack of them."""
    rows, inputs = weight.shape[-2:]
    if isinstance(weight, DenseWeight):
        kind = _F32 if weight.data.dtype == torch.float32 else _BF16
        return kind, weight.data.data_ptr(), 0, rows, inputs
    kind = _FP8 if isinstance(weight, Fp8Weight) else _FP4
    return kind, weight.data.data_ptr(), weight.scale.data_ptr(), rows, inputs
