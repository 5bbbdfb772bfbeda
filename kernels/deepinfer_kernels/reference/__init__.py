"""Torch references of every op: slow, plain, and what all other families are tested against."""

from deepinfer_kernels.reference.attention import (
    compress_pool,
    draft_attention,
    index_topk,
    paged_attention,
    sparse_attention,
    store_compress_state,
)
from deepinfer_kernels.reference.codec import pack_kv, quantize_dequantize, store_records, unpack_kv
from deepinfer_kernels.reference.engram import engram_gate
from deepinfer_kernels.reference.hyper_connection import (
    hyper_connection_collapse,
    hyper_connection_expand,
    hyper_connection_mix,
)
from deepinfer_kernels.reference.linear import grouped_linear, linear, linear_quantized
from deepinfer_kernels.reference.moe import moe_experts, route_experts, swiglu
from deepinfer_kernels.reference.norm_rope import apply_rope, apply_rope_half_split, rms_norm, rope_table

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
