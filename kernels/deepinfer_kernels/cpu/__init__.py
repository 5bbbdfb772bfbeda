"""The CPU family: native kernels whose result for a row depends on that row alone, bit for bit.

See ``kernels/csrc/core.h`` for the order of summation. Arguments were checked by the op interface,
indices are checked here.

An op runs on the threads of the pool that is bound to the thread that calls it: an engine's, which ``new_host_pool``
makes. Where none is bound it runs on a default pool of all usable CPUs; ``set_num_threads`` replaces that one.
"""

from deepinfer_kernels._cpu import get_isa, get_num_threads, new_host_pool, set_isa, set_num_threads, usable_cpus
from deepinfer_kernels.cpu.attention import (
    compress_pool,
    draft_attention,
    gathered_attention,
    index_topk,
    paged_attention,
    sparse_attention,
    store_compress_state,
)
from deepinfer_kernels.cpu.codec import pack_kv, quantize_dequantize, store_records, unpack_kv
from deepinfer_kernels.cpu.engram import engram_gate
from deepinfer_kernels.cpu.hyper_connection import (
    hyper_connection_collapse,
    hyper_connection_expand,
    hyper_connection_mix,
)
from deepinfer_kernels.cpu.linear import grouped_linear, linear, linear_quantized
from deepinfer_kernels.cpu.moe import moe_experts, route_experts, swiglu
from deepinfer_kernels.cpu.norm_rope import apply_rope, apply_rope_half_split, rms_norm, rope_table

__all__ = [
    "apply_rope",
    "apply_rope_half_split",
    "compress_pool",
    "draft_attention",
    "engram_gate",
    "gathered_attention",
    "get_isa",
    "get_num_threads",
    "grouped_linear",
    "hyper_connection_collapse",
    "hyper_connection_expand",
    "hyper_connection_mix",
    "index_topk",
    "linear",
    "linear_quantized",
    "moe_experts",
    "new_host_pool",
    "pack_kv",
    "paged_attention",
    "quantize_dequantize",
    "rms_norm",
    "rope_table",
    "route_experts",
    "set_isa",
    "set_num_threads",
    "sparse_attention",
    "store_compress_state",
    "store_records",
    "swiglu",
    "unpack_kv",
    "usable_cpus",
]
