"""The op interface: each function documents an op, checks a call's arguments and returns nothing.

Kinds and shapes are checked, never what a tensor holds: to read that is to wait for the device. Families whose kernels
run on the host check indices themselves (:mod:`deepinfer_kernels.cpu.bounds`).

Implementations live in one package per kernel family and are reached through :mod:`deepinfer_kernels.ops`.
"""

from deepinfer_kernels.interface.attention import (
    compress_pool,
    draft_attention,
    index_topk,
    paged_attention,
    sparse_attention,
    store_compress_state,
)
from deepinfer_kernels.interface.codec import pack_kv, quantize_dequantize, store_records, unpack_kv
from deepinfer_kernels.interface.engram import engram_gate
from deepinfer_kernels.interface.hyper_connection import (
    hyper_connection_collapse,
    hyper_connection_expand,
    hyper_connection_mix,
)
from deepinfer_kernels.interface.linear import grouped_linear, linear, linear_quantized
from deepinfer_kernels.interface.moe import moe_experts, route_experts, swiglu
from deepinfer_kernels.interface.norm_rope import apply_rope, apply_rope_half_split, rms_norm, rope_table

__all__ = [
    "apply_rope",
    "apply_rope_half_split",
    "compress_pool",
    "draft_attention",
    "engram_gate",
    "grouped_linear",
    "hyper_connection_collapse",
    "hyper_connection_expand",
    "hyper_connection_mix",
    "index_topk",
    "linear",
    "linear_quantized",
    "moe_experts",
    "pack_kv",
    "paged_attention",
    "quantize_dequantize",
    "rms_norm",
    "rope_table",
    "route_experts",
    "sparse_attention",
    "store_compress_state",
    "store_records",
    "swiglu",
    "unpack_kv",
]
