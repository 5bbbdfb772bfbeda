# The native extension. Arrays are addresses of contiguous memory; sizes follow the arrays, as in csrc/ops.h.

_Array = tuple[int, bool]  # address, is f32 (else bf16)
_Weight = tuple[int, int, int, int, int]  # format, data, scale, M, K

def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...
def usable_cpus() -> int: ...
def new_host_pool(num_threads: int | None) -> object: ...
def set_isa(name: str) -> None: ...
def get_isa() -> str: ...
def extremes(indices: int, is_int64: bool, count: int, /) -> tuple[int, int]: ...
def linear(x: _Array, w: _Weight, out: _Array, N: int, quantize: bool, /) -> None: ...
def grouped_linear(x: int, w: _Weight, out: int, N: int, G: int, /) -> None: ...
def quantize_dequantize(x: int, codec: int, out: int, N: int, D: int, /) -> None: ...
def pack_kv(x: int, codec: int, records: int, N: int, D: int, /) -> None: ...
def unpack_kv(records: int, codec: int, out: int, N: int, D: int, /) -> None: ...
def store_records(cache: int, slots: int, records: int, N: int, size: int, /) -> None: ...
def rms_norm(x: _Array, weight: _Array, eps: float, out: int, N: int, D: int, /) -> None: ...
def rope_table(positions: int, inv_freq: int, cos: int, sin: int, N: int, half: int, /) -> None: ...
def apply_rope(x: int, cos: int, sin: int, inverse: bool, out: int, N: int, H: int, D: int, half: int, /) -> None: ...
def apply_rope_half_split(x: int, cos: int, sin: int, out: int, N: int, H: int, D: int, half: int, /) -> None: ...
def hyper_connection_mix(
    x: int,
    fn: int,
    base: int,
    scale: int,
    iterations: int,
    eps: float,
    norm_eps: float,
    pre: int,
    post: int,
    comb: int,
    N: int,
    m: int,
    d: int,
    /,
) -> None: ...
def hyper_connection_collapse(x: int, pre: int, out: int, N: int, m: int, d: int, /) -> None: ...
def hyper_connection_expand(y: int, x: int, post: int, comb: int, out: int, N: int, m: int, d: int, /) -> None: ...
def swiglu(a: int, b: int, limit: float, out: int, N: int, I: int, /) -> None: ...
def route_experts(
    x: int,
    weight: int,
    bias: int,
    k: int,
    route_scale: float,
    normalize: bool,
    ids: int,
    weights: int,
    N: int,
    E: int,
    d: int,
    /,
) -> None: ...
def moe_experts(
    x: int,
    ids: int,
    weights: int,
    w1: _Weight,
    w2: _Weight,
    w3: _Weight,
    limit: float,
    quantize: bool,
    out: int,
    N: int,
    k: int,
    experts: int,
    /,
) -> None: ...
def compress_pool(
    values: int, scores: int, state: int, members: int, out: int, G: int, D: int, ratio: int, /
) -> None: ...
def store_compress_state(values: int, scores: int, state: int, places: int, N: int, D: int, /) -> None: ...
def index_topk(
    query: tuple[int, int, int, int, int, int, int, list[int]], indices: int, blocks: int, N: int, /
) -> None: ...
def sparse_attention(
    q: int,
    sink: int,
    scale: float,
    window: tuple[int, int, int, int, int, int, int],
    compressed: tuple[int, int, int, int, int, int, int],
    out: int,
    N: int,
    H: int,
    D: int,
    /,
) -> None: ...
def draft_attention(
    q: int,
    sink: int,
    scale: float,
    drafts: tuple[int, int, int, int, int, int, int],
    out: int,
    N: int,
    H: int,
    D: int,
    /,
) -> None: ...
def gathered_attention(
    q: int,
    keys: int,
    indices: int,
    sink: int,
    scale: float,
    out: int,
    N: int,
    H: int,
    D: int,
    entries: int,
    K: int,
    /,
) -> None: ...
def paged_attention(
    q: int,
    scale: float,
    pages: tuple[int, int, int, int, int, int, int, int, int],
    out: int,
    N: int,
    H: int,
    D: int,
    /,
) -> None: ...
def engram_gate(
    x: int,
    kv: int,
    q_weight: int,
    k_weight: int,
    norm_eps: float,
    clamp: float,
    mask: int,
    out: int,
    N: int,
    m: int,
    d: int,
    /,
) -> None: ...
