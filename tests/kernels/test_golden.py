"""Every op of both families against the published reference's unit vectors (tests/data/kernels.safetensors)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from deepinfer_kernels import cpu, ops
from deepinfer_kernels.codecs import CODECS
from deepinfer_kernels.ops import KernelFamily
from deepinfer_kernels.reference.attention import attend
from deepinfer_kernels.weights import DenseWeight, Fp4Weight, Fp8Weight

GOLDEN = load_file(str(Path(__file__).parents[1] / "data" / "kernels.safetensors"))


@pytest.fixture(params=["reference", "cpu"])
def family(request: pytest.FixtureRequest) -> KernelFamily:
    return ops.family(request.param)


def group(name: str) -> dict[str, Tensor]:
    """The arrays of one primitive, batch dimensions of 1 removed, packed bytes as uint8."""
    found = {}
    for key, value in GOLDEN.items():
        if key.startswith(name + "/"):
            if value.dtype in (torch.int8, torch.float8_e4m3fn, torch.float8_e8m0fnu):
                value = value.view(torch.uint8)
            found[key[len(name) + 1 :]] = value
    return found


def ulps(actual: Tensor, expected: Tensor) -> Tensor:
    """Distance in bf16 steps, element by element."""
    assert actual.dtype == expected.dtype == torch.bfloat16, "ulps are counted on bf16"

    def order(x: Tensor) -> Tensor:
        code = x.contiguous().view(torch.int16).int()
        return torch.where(code < 0, -(code & 0x7FFF), code)

    return (order(actual) - order(expected)).abs()


def close(actual: Tensor, expected: Tensor, limit: int = 1) -> None:
    """At most ``limit`` bf16 ulps anywhere, and hardly ever any."""
    distance = ulps(actual, expected)
    assert distance.max() <= limit, f"{int(distance.max())} bf16 ulps"
    assert (distance > 0).float().mean() < 0.02, f"{int((distance > 0).sum())} of {distance.numel()} differ"


def test_every_e4m3_code_decodes(family: KernelFamily) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    weight = Fp8Weight(codes[:, None].contiguous(), torch.full((8, 1), 127, dtype=torch.uint8))
    value = family.linear(torch.ones(1, 1), weight, torch.float32)[0]
    torch.testing.assert_close(value, group("formats")["e4m3_all_f32"], rtol=0, atol=0, equal_nan=True)


def test_every_e8m0_code_scales(family: KernelFamily) -> None:
    one = torch.full((256 * 32, 1), 0x38, dtype=torch.uint8)
    weight = Fp8Weight(one, torch.arange(256, dtype=torch.uint8)[:, None].contiguous())
    value = family.linear(torch.ones(1, 1), weight, torch.float32)[0, ::32]
    torch.testing.assert_close(value, group("formats")["e8m0_all_f32"], rtol=0, atol=0, equal_nan=True)


def test_every_fp4_byte_decodes(family: KernelFamily) -> None:
    packed = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()
    weight = Fp4Weight(packed, torch.full((256, 1), 127, dtype=torch.uint8))
    value = family.linear(torch.eye(32), weight, torch.float32)
    assert torch.equal(value[:2].T, group("formats")["fp4_all_bytes_f32"])


@pytest.mark.parametrize(
    ("name", "codec", "data"),
    [
        ("act_quant", "fp8_e8m0_32", "q"),
        ("fp4_e8m0_32", "fp4_e8m0_32", "packed"),
        ("fp4_e4m3_16", "fp4_e4m3_16", "packed"),
    ],
)
def test_quantisers_are_exact(family: KernelFamily, name: str, codec: str, data: str) -> None:
    golden = group(name)
    quantised = family.quantize_dequantize(golden["x"], codec)
    assert torch.equal(quantised.view(torch.int16), golden["qdq"].view(torch.int16))
    records = family.pack_kv(golden["x"], codec)
    assert torch.equal(records, torch.cat([golden[data], golden["scale"]], -1))
    assert records.shape[1] == CODECS[codec].record_bytes(golden["x"].shape[1])
    assert torch.equal(family.unpack_kv(records, codec, golden["x"].shape[1]), golden["qdq"])


@pytest.mark.parametrize(("name", "form"), [("fp8_gemm", Fp8Weight), ("fp4_gemm", Fp4Weight)])
def test_quantised_linear(family: KernelFamily, name: str, form: type[Fp8Weight] | type[Fp4Weight]) -> None:
    golden = group(name)
    weight = form(golden["w"], golden["w_scale"])
    assert torch.equal(family.linear_quantized(golden["a"], weight), golden["c"])
    inputs = family.quantize_dequantize(golden["a"], "fp8_e8m0_32")
    exact = family.linear(inputs, weight, torch.float32)
    torch.testing.assert_close(exact, golden["c_exact_f32"], rtol=1e-6, atol=1e-6)


def test_rms_norm(family: KernelFamily) -> None:
    golden = group("rmsnorm")
    out = family.rms_norm(golden["x"], golden["w"], 1e-20)
    close(out, golden["out"])
    assert not out[-1].any(), "a row of zeros stays zero"


def yarn_frequencies(dim: int, theta: float, original: int, factor: float) -> Tensor:
    """YaRN's blended frequencies (beta 32 and 1), in radians per token; original = 0: no scaling."""
    frequency = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if original == 0:
        return frequency

    def turns(count: float) -> float:
        ratio = torch.tensor(original / (count * 2 * torch.pi), dtype=torch.float64)
        return float(dim * ratio.log() / (2 * torch.tensor(theta, dtype=torch.float64).log()))

    low, high = max(int(turns(32)), 0), min(-int(-turns(1) // 1), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequency / factor * ramp + frequency * (1 - ramp)


@pytest.mark.parametrize(
    ("name", "dim", "theta", "original", "factor"),
    [
        ("window", 64, 10000.0, 0, 16),
        ("yarn", 64, 160000.0, 65536, 16),
        ("tiny_window", 16, 10000.0, 0, 4),
        ("tiny_yarn", 16, 160000.0, 32, 4),
    ],
)
def test_rope_table(family: KernelFamily, name: str, dim: int, theta: float, original: int, factor: float) -> None:
    golden = group("rope")
    cos, sin = family.rope_table(golden["positions"], yarn_frequencies(dim, theta, original, factor))
    torch.testing.assert_close(cos, golden[f"{name}/cos"], rtol=0, atol=1e-6)
    torch.testing.assert_close(sin, golden[f"{name}/sin"], rtol=0, atol=1e-6)


def test_rope_rotates_and_rotates_back(family: KernelFamily) -> None:
    golden = group("rope")
    table = family.rope_table(torch.arange(10, 16), yarn_frequencies(64, 160000.0, 65536, 16))
    x = golden["apply_x"][0]
    close(family.apply_rope(x, *table, inverse=False), golden["apply_out"][0])
    close(family.apply_rope(x, *table, inverse=True), golden["apply_inverse_out"][0])


def test_hyper_connections(family: KernelFamily) -> None:
    golden = group("hc4")
    x = golden["x"][0]
    mix = family.hyper_connection_mix(x, golden["fn"], golden["base"], golden["scale"], 20, 1e-6, 1e-20)
    for actual, name in zip(mix, ("x_pre", "x_post", "x_comb"), strict=True):
        torch.testing.assert_close(actual, golden[name][0], rtol=1e-5, atol=1e-7)
    close(family.hyper_connection_collapse(x, golden["x_pre"][0]), golden["hc_pre_out"][0])
    expanded = family.hyper_connection_expand(golden["y"][0], x, golden["x_post"][0], golden["x_comb"][0])
    close(expanded, golden["hc_post_out"][0])


def test_router(family: KernelFamily) -> None:
    golden = group("gate")
    for bias, k, suffix in ((golden["bias"], 3, ""), (golden["bias"], 1, "_top1")):
        ids, weights = family.route_experts(golden["x"], golden["w"], bias, k, 1.5, True)
        assert torch.equal(ids.long(), golden["indices" + suffix])
        torch.testing.assert_close(weights, golden["weights" + suffix], rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("name", "limit", "weighted"),
    [("out", 0.9, True), ("out_unclamped", 1e9, True), ("out_unweighted", 0.9, False)],
)
def test_expert(family: KernelFamily, name: str, limit: float, weighted: bool) -> None:
    golden = group("swiglu")
    rows = golden["x"].shape[0]
    weights = golden["route_weight"] if weighted else torch.ones(rows, 1)
    stacks = [DenseWeight(golden[w][None].contiguous()) for w in ("w1", "w2", "w3")]
    ids = torch.zeros(rows, 1, dtype=torch.int32)
    out = family.moe_experts(golden["x"], ids, weights.contiguous(), *stacks, limit, False)
    close(out.to(torch.bfloat16), golden[name])
    if not weighted:
        a, b = (family.linear(golden["x"], DenseWeight(golden[w]), torch.bfloat16) for w in ("w1", "w3"))
        hidden = family.swiglu(a, b, limit)
        close(family.linear(hidden, DenseWeight(golden["w2"]), torch.bfloat16), golden[name])


def test_engram_gate(family: KernelFamily) -> None:
    golden = group("engram_gate")
    arrays = golden["h"][0], golden["kv"][0], golden["q_weight"], golden["k_weight"]
    close(family.engram_gate(*arrays, 1e-20, 1e-6, None), golden["out"][0], limit=2)
    masked = family.engram_gate(*arrays, 1e-20, 1e-6, golden["token_mask"][0])
    close(masked, golden["out_masked"][0], limit=2)


def test_compressor_across_prefill_and_decode(family: KernelFamily) -> None:
    golden = group("compressor2")
    x, dim = golden["x"][0], golden["norm"].shape[0]
    values = family.linear(x, DenseWeight(golden["wkv"]), torch.float32)
    scores = family.linear(x, DenseWeight(golden["wgate"]), torch.float32)
    state = torch.zeros(2, 3, 2, dim)
    slot, latents = 3, []  # the second one's first place
    # A prompt of seven, whose last token opens a group, and the one that ends it.
    for begin, end, members in ((0, 7, [[0, 1], [2, 3], [4, 5]]), (7, 8, [[-1 - (slot + 6 % 3), 0]])):
        chunk = values[begin:end].contiguous(), scores[begin:end].contiguous()
        latents.append(family.compress_pool(*chunk, state, torch.tensor(members)))
        positions = torch.arange(begin, end)
        places = torch.where(positions >= end - 3, slot + positions % 3, -1)
        family.store_compress_state(*chunk, state, places)
    for latent, name in zip(latents, ("latent_prefill7", "latent_decode7"), strict=True):
        # The published compressor rounds the pooled latent to bf16 before its norm.
        close(family.rms_norm(latent.to(torch.bfloat16), golden["norm"], 1e-20), golden[name][0])


def test_sparse_attention_softmax(family: KernelFamily) -> None:
    golden = group("sparse_attn")
    scale = 0.1767766952966369
    for q, kv, idx, out in zip(*(golden[name] for name in ("q", "kv", "idx", "out")), strict=True):
        if family.name == "cpu":
            actual = cpu.gathered_attention(q, kv, idx, golden["sink"], scale)
        else:
            keys = [kv[row.clamp_min(0).long()] for row in idx]
            rows = [attend(q[n], keys[n], keys[n], idx[n] >= 0, golden["sink"], scale) for n in range(len(idx))]
            actual = torch.stack(rows)
        close(actual, out)
        assert not actual[(idx < 0).all(-1)].any(), "nothing visible gives zero"
