"""The CPU family: native kernels whose result for a row depends on that row alone, bit for bit.

See ``kernels/csrc/core.h`` for the order of summation. Arguments were checked by the op interface.
"""

from deepinfer_kernels._cpu import get_isa, get_num_threads, set_isa, set_num_threads
from deepinfer_kernels.cpu.linear import grouped_linear, linear, linear_quantized

__all__ = [
    "get_isa",
    "get_num_threads",
    "grouped_linear",
    "linear",
    "linear_quantized",
    "set_isa",
    "set_num_threads",
]
