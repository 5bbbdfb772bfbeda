"""Quantisers and packed cache records.

Codecs: ``fp8_e8m0_32`` (e4m3 codes, power-of-two scale per 32), ``fp4_e8m0_32`` (e2m1, power-of-two scale
per 32), ``fp4_e4m3_16`` (e2m1, e4m3 scale per 16). A record is the codes followed by the scales.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.interface import checks


def quantize_dequantize(x: Tensor, codec: str) -> None:
    """``x [N,D]`` bf16 → bf16 ``[N,D]``, every element replaced by what ``codec`` can hold of it."""
    _, dim = checks.tensor("x", x, (None, None), torch.bfloat16)
    checks.codec(codec, dim)


def pack_kv(x: Tensor, codec: str) -> None:
    """``x [N,D]`` bf16 → uint8 records ``[N, record_bytes]``."""
    _, dim = checks.tensor("x", x, (None, None), torch.bfloat16)
    checks.codec(codec, dim)


def unpack_kv(records: Tensor, codec: str, dim: int) -> None:
    """uint8 records ``[N, record_bytes]`` → bf16 ``[N, dim]``."""
    checks.tensor("records", records, (None, checks.codec(codec, dim)), torch.uint8)


def store_records(cache: Tensor, slots: Tensor, records: Tensor) -> None:
    """Write ``records [N,B]`` uint8 into ``cache [P,E,B]`` in place, record ``i`` at flat entry ``slots[i]``
    (int64, ``page·E + entry``; −1 skips the record)."""
    _, _, size = checks.tensor("cache", cache, (None, None, None), torch.uint8)
    rows, _ = checks.tensor("records", records, (None, size), torch.uint8)
    checks.tensor("slots", slots, (rows,), torch.int64)
