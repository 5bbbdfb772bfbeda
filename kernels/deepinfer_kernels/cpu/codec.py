"""Quantisers and packed cache records."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels import _cpu
from deepinfer_kernels.codecs import CODECS
from deepinfer_kernels.cpu.bounds import below, extremes

#: Codecs as the extension numbers them.
_NUMBER = {"fp8_e8m0_32": 0, "fp4_e4m3_16": 1, "fp4_e8m0_32": 2}


def quantize_dequantize(x: Tensor, codec: str) -> Tensor:
    """See the interface."""
    out = torch.empty_like(x)
    _cpu.quantize_dequantize(x.data_ptr(), _NUMBER[codec], out.data_ptr(), *x.shape)
    return out


def pack_kv(x: Tensor, codec: str) -> Tensor:
    """See the interface."""
    rows, dim = x.shape
    out = torch.empty(rows, CODECS[codec].record_bytes(dim), dtype=torch.uint8)
    _cpu.pack_kv(x.data_ptr(), _NUMBER[codec], out.data_ptr(), rows, dim)
    return out


def unpack_kv(records: Tensor, codec: str, dim: int) -> Tensor:
    """See the interface."""
    out = torch.empty(records.shape[0], dim, dtype=torch.bfloat16)
    _cpu.unpack_kv(records.data_ptr(), _NUMBER[codec], out.data_ptr(), *out.shape)
    return out


def store_records(cache: Tensor, slots: Tensor, records: Tensor) -> None:
    """See the interface."""
    below("slots", extremes(slots)[1], cache.shape[0] * cache.shape[1], "for this cache")
    _cpu.store_records(cache.data_ptr(), slots.data_ptr(), records.data_ptr(), *records.shape)
