"""Ops whose rows are independent of each other: the result of a row depends on that row alone, bit for bit,
and agrees with the torch reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer_kernels import _cpu, cpu, interface, ops
from deepinfer_kernels.weights import DenseWeight, Fp4Weight, Fp8Weight, Weight

Outputs = tuple[Tensor, ...]


@dataclass
class Case:
    """``call(family, *rows)`` on row tensors that share their first dimension."""

    rows: tuple[Tensor, ...]
    call: Callable[..., Any]

    def run(self, family: str, pick: Tensor | None = None) -> Outputs:
        rows = self.rows if pick is None else tuple(x[pick].contiguous() for x in self.rows)
        out = self.call(ops.family(family), *rows)
        return out if isinstance(out, tuple) else (out,)


def bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).to(torch.bfloat16)


def random_weight(form: str, outputs: int, inputs: int, *lead: int) -> Weight:
    """A weight of some storage format whose values are of order 1."""
    if form == "bf16":
        return DenseWeight(bf16(*lead, outputs, inputs))
    if form == "f32":
        return DenseWeight(torch.randn(*lead, outputs, inputs))
    blocks = -(-inputs // 32)
    if form == "fp8":
        codes = torch.randn(*lead, outputs, inputs).to(torch.float8_e4m3fn).view(torch.uint8)
        scales = torch.randint(124, 129, (*lead, -(-outputs // 32), blocks), dtype=torch.uint8)
        return Fp8Weight(codes, scales)
    codes = torch.randint(0, 256, (*lead, outputs, inputs // 2), dtype=torch.uint8)
    return Fp4Weight(codes, torch.randint(122, 127, (*lead, outputs, blocks), dtype=torch.uint8))


def linear_case(form: str) -> Callable[[int, int], Case]:
    def make(rows: int, size: int) -> Case:
        inputs, outputs = (32 * size, 5 * size + 1) if form == "fp4" else (13 * size, 5 * size + 1)
        weight = random_weight(form, outputs, inputs)
        return Case((bf16(rows, inputs),), lambda f, x: f.linear(x, weight, torch.bfloat16))

    return make


def linear_f32(rows: int, size: int) -> Case:
    weight = random_weight("bf16", 3 * size, 7 * size)
    return Case((torch.randn(rows, 7 * size),), lambda f, x: f.linear(x, weight, torch.float32))


def linear_quantized(rows: int, size: int) -> Case:
    weight = random_weight("fp8", 40, 32 * size)
    return Case((bf16(rows, 32 * size),), lambda f, x: f.linear_quantized(x, weight))


def grouped_linear(rows: int, size: int) -> Case:
    weight = random_weight("fp8", 3 * 20, 9 * size)
    return Case((bf16(rows, 3, 9 * size),), lambda f, x: f.grouped_linear(x, weight, 3))


def codec_case(codec: str) -> Callable[[int, int], Case]:
    def make(rows: int, size: int) -> Case:
        x = bf16(rows, 32 * size) * torch.randn(rows, 1).mul(4).exp2().to(torch.bfloat16)

        def call(f: Any, x: Tensor) -> Outputs:
            records = f.pack_kv(x, codec)
            return f.quantize_dequantize(x, codec), records, f.unpack_kv(records, codec, x.shape[1])

        return Case((x,), call)

    return make


def rms_norm(rows: int, size: int) -> Case:
    weight = bf16(11 * size)
    return Case((bf16(rows, 11 * size),), lambda f, x: f.rms_norm(x, weight, 1e-20))


def rms_norm_f32(rows: int, size: int) -> Case:
    weight = torch.randn(11 * size)
    return Case((torch.randn(rows, 11 * size),), lambda f, x: f.rms_norm(x, weight, 1e-6))


def rope(rows: int, size: int) -> Case:
    frequencies = 1e4 ** -torch.linspace(0, 1, size)
    positions = torch.randint(0, 1_000_000, (rows,))

    def call(f: Any, positions: Tensor, x: Tensor) -> Outputs:
        table = f.rope_table(positions, frequencies)
        return f.apply_rope(x, *table, inverse=False), f.apply_rope(x, *table, inverse=True), *table

    return Case((positions, bf16(rows, 3, 2 * size + 5)), call)


def rope_half_split(rows: int, size: int) -> Case:
    frequencies = 1e4 ** -torch.linspace(0, 1, size)
    positions = torch.randint(0, 1_000_000, (rows,))

    def call(f: Any, positions: Tensor, x: Tensor) -> Tensor:
        turned: Tensor = f.apply_rope_half_split(x, *f.rope_table(positions, frequencies))
        return turned

    return Case((positions, bf16(rows, 3, 2 * size + 5)), call)


def mix(rows: int, size: int) -> Case:
    fn, base, scale = torch.randn(24, 4 * 3 * size), torch.randn(24), torch.rand(3)
    return Case(
        (bf16(rows, 4, 3 * size),),
        lambda f, x: f.hyper_connection_mix(x, fn, base, scale, 20, 1e-6, 1e-20),
    )


def collapse(rows: int, size: int) -> Case:
    return Case((bf16(rows, 4, 3 * size), torch.rand(rows, 4)), lambda f, *a: f.hyper_connection_collapse(*a))


def expand(rows: int, size: int) -> Case:
    tensors = bf16(rows, 3 * size), bf16(rows, 4, 3 * size), torch.rand(rows, 4), torch.rand(rows, 4, 4)
    return Case(tensors, lambda f, *a: f.hyper_connection_expand(*a))


def swiglu(rows: int, size: int) -> Case:
    return Case((bf16(rows, 7 * size, scale=3), bf16(rows, 7 * size)), lambda f, a, b: f.swiglu(a, b, 1.5))


def router(rows: int, size: int) -> Case:
    weight, bias = bf16(3 * size + 5, 8 * size), torch.randn(3 * size + 5)
    return Case((bf16(rows, 8 * size),), lambda f, x: f.route_experts(x, weight, bias, 4, 1.5, True))


def experts_case(form: str, quantize: bool) -> Callable[[int, int], Case]:
    def make(rows: int, size: int) -> Case:
        experts, dim, inner = 5, 32 * size, 32 * (1 + size % 3)
        w1, w3 = (random_weight(form, inner, dim, experts) for _ in range(2))
        w2 = random_weight(form, dim, inner, experts)
        ids = torch.stack([torch.randperm(experts)[:3] for _ in range(rows)]).int()
        tensors = bf16(rows, dim, scale=0.1), ids, torch.rand(rows, 3)
        return Case(tensors, lambda f, *a: f.moe_experts(*a, w1, w2, w3, 1.5, quantize))

    return make


def engram(rows: int, size: int) -> Case:
    q_weight, k_weight = bf16(4, 3 * size), bf16(4, 3 * size)
    tensors = bf16(rows, 4, 3 * size), bf16(rows, 5 * 3 * size), torch.rand(rows) < 0.7
    return Case(tensors, lambda f, x, kv, mask: f.engram_gate(x, kv, q_weight, k_weight, 1e-20, 1e-6, mask))


CASES = {
    "linear bf16": linear_case("bf16"),
    "linear f32": linear_case("f32"),
    "linear fp8": linear_case("fp8"),
    "linear fp4": linear_case("fp4"),
    "linear f32 to f32": linear_f32,
    "linear_quantized": linear_quantized,
    "grouped_linear": grouped_linear,
    "fp8_e8m0_32": codec_case("fp8_e8m0_32"),
    "fp4_e4m3_16": codec_case("fp4_e4m3_16"),
    "fp4_e8m0_32": codec_case("fp4_e8m0_32"),
    "rms_norm": rms_norm,
    "rms_norm f32": rms_norm_f32,
    "rope": rope,
    "rope half split": rope_half_split,
    "hyper_connection_mix": mix,
    "hyper_connection_collapse": collapse,
    "hyper_connection_expand": expand,
    "swiglu": swiglu,
    "route_experts": router,
    "moe_experts bf16": experts_case("bf16", False),
    "moe_experts fp4": experts_case("fp4", True),
    "engram_gate": engram,
}
#: Ops that must agree with the reference in every bit: no sum is involved.
EXACT = {"fp8_e8m0_32", "fp4_e4m3_16", "fp4_e8m0_32"}

every_case = pytest.mark.parametrize("name", CASES)
examples = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
shapes = given(seed=st.integers(0, 2**31), rows=st.integers(1, 40), size=st.integers(1, 12))


def available_isas() -> list[str]:
    """Instruction sets of this machine, the widest first."""
    chosen, found = cpu.get_isa(), []
    for isa in ("avx512", "avx2", "plain"):
        try:
            cpu.set_isa(isa)
        except ValueError:
            continue
        found.append(isa)
    cpu.set_isa(chosen)
    return found


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    isa, threads = cpu.get_isa(), cpu.get_num_threads()
    yield
    cpu.set_isa(isa)
    cpu.set_num_threads(threads)


def build(name: str, seed: int, rows: int, size: int) -> Case:
    torch.manual_seed(seed)
    return CASES[name](rows, size)


def identical(actual: Outputs, expected: Outputs, context: str) -> None:
    """Same bits (so that 0 and -0 count as different)."""
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype, context
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), context


@every_case
@examples
@shapes
def test_a_row_alone_equals_the_row_in_any_batch(name: str, seed: int, rows: int, size: int) -> None:
    case = build(name, seed, rows, size)
    whole = case.run("cpu")
    order = torch.randperm(rows)
    identical(case.run("cpu", order), tuple(x[order].contiguous() for x in whole), "permuted")
    for row in {0, rows // 2, rows - 1}:
        pick = torch.tensor([row])
        identical(case.run("cpu", pick), tuple(x[pick].contiguous() for x in whole), f"row {row} alone")


@every_case
@examples
@shapes
def test_threads_and_instruction_sets_change_nothing(name: str, seed: int, rows: int, size: int) -> None:
    case = build(name, seed, rows, size)
    cpu.set_num_threads(2)
    whole = case.run("cpu")
    for isa in available_isas():
        for threads in (1, 3):
            cpu.set_isa(isa)
            cpu.set_num_threads(threads)
            identical(case.run("cpu"), whole, f"{isa}, {threads} threads")
    cpu.set_isa(available_isas()[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_work_large_enough_for_several_threads(threads: int) -> None:
    torch.manual_seed(0)
    x, weight = bf16(150, 1100), random_weight("bf16", 130, 1100)
    cpu.set_num_threads(threads)
    whole = ops.cpu.linear(x, weight, torch.float32)
    for isa in available_isas():
        cpu.set_isa(isa)
        for begin, end in ((0, 1), (1, 9), (9, 73), (73, 150)):
            part = ops.cpu.linear(x[begin:end].contiguous(), weight, torch.float32)
            assert torch.equal(part, whole[begin:end]), f"rows {begin}..{end}, {isa}"


@every_case
@examples
@shapes
def test_agrees_with_the_reference(name: str, seed: int, rows: int, size: int) -> None:
    case = build(name, seed, rows, size)
    actual, expected = case.run("cpu"), case.run("reference")
    if name in EXACT:
        return identical(actual, expected, "exact op")
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape, "same kind of result"
        if not one.is_floating_point():
            assert torch.equal(one, other), "same choice"
            continue
        # A bf16 ulp of the row's largest element; what the model's tolerances are stated in.
        step = 2.0**-7 if one.dtype == torch.bfloat16 or name.startswith("moe") else 1e-5
        size_of_row = other.float().abs().flatten(1).amax(1).clamp_min(1e-30)
        error = (one.float() - other.float()).abs().flatten(1).amax(1)
        assert (error <= step * size_of_row).all(), f"largest error {float((error / size_of_row).max()):.2e}"


def test_no_rows_is_no_error() -> None:
    for name in CASES:
        torch.manual_seed(1)
        case = CASES[name](2, 3)
        for out in case.run("cpu", torch.tensor([], dtype=torch.long)):
            assert out.shape[0] == 0, name


def test_the_two_rotations_differ_by_the_order_of_dimensions() -> None:
    """Pairs (i, i + R/2) brought side by side, turned, and put back."""
    torch.manual_seed(8)
    x, table = bf16(5, 3, 16), ops.cpu.rope_table(torch.arange(5), torch.rand(8))
    beside = x.unflatten(-1, (2, 8)).transpose(-1, -2).flatten(-2).contiguous()
    turned = ops.cpu.apply_rope(beside, *table, False)
    back = turned.unflatten(-1, (8, 2)).transpose(-1, -2).flatten(-2)
    assert torch.equal(ops.cpu.apply_rope_half_split(x, *table), back)


def test_more_rows_than_one_pass_takes() -> None:
    """Ops that work through their rows in passes join them without a seam."""
    torch.manual_seed(6)
    x, weight = bf16(1100, 4, 32), random_weight("fp8", 4 * 8, 32)
    whole = ops.cpu.grouped_linear(x, weight, 4)
    flat = ops.cpu.linear(x[:, 0].contiguous(), weight, torch.bfloat16)[:, :8]
    assert torch.equal(whole[:, 0], flat), "group 0 of every row"
    assert torch.equal(ops.cpu.grouped_linear(x[1020:].contiguous(), weight, 4), whole[1020:])
    case = experts_case("fp4", True)(1030, 1)
    pick = torch.arange(1020, 1030)
    identical(case.run("cpu", pick), (case.run("cpu")[0][pick],), "moe")


def test_every_op_of_the_interface_is_native() -> None:
    assert set(interface.__all__) <= set(cpu.__all__)


def test_concurrent_callers_get_the_same_rows() -> None:
    """The GIL is released inside; callers on several Python threads do not disturb each other."""
    torch.manual_seed(2)
    x, weight = bf16(32, 512), random_weight("fp8", 256, 512)
    expected = ops.cpu.linear(x, weight, torch.bfloat16)
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda _: ops.cpu.linear(x, weight, torch.bfloat16), range(32)))
    assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_alone() -> None:
    """The helper threads do not exist in a child; it must neither wait for them nor differ."""
    torch.manual_seed(4)
    x, weight = bf16(64, 512), bf16(256, 512)
    cpu.set_num_threads(2)
    expected = ops.cpu.linear(x, DenseWeight(weight), torch.float32)
    out = torch.zeros_like(expected).share_memory_()
    child = os.fork()
    if child == 0:
        # Straight to the extension: torch is not to be used after a fork.
        native = (0, weight.data_ptr(), 0, 256, 512)
        _cpu.linear((x.data_ptr(), False), native, (out.data_ptr(), True), 64, False)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child ended well"
    assert torch.equal(out, expected)


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'sse9' is not available.*plain"):
        cpu.set_isa("sse9")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cpu.set_num_threads(0)


def test_nan_stays_nan() -> None:
    x = torch.full((1, 32), torch.nan, dtype=torch.bfloat16)
    weight = random_weight("bf16", 3, 32)
    for isa in available_isas():
        cpu.set_isa(isa)
        assert ops.cpu.linear(x, weight, torch.bfloat16).isnan().all(), isa
        assert ops.cpu.swiglu(x, x, 1.0).isnan().all(), isa


def test_softplus_and_sigmoid_at_extremes() -> None:
    """Large logits keep their size, small ones reach zero without NaN."""
    weight = torch.eye(4, dtype=torch.bfloat16)
    x = torch.tensor([[3e4, -3e4, 30.0, -30.0]], dtype=torch.bfloat16)
    ids, weights = ops.cpu.route_experts(x, weight, torch.zeros(4), 4, 1.0, False)
    assert ids[0].tolist() == [0, 2, 3, 1]
    torch.testing.assert_close(weights[0, :2].square(), x[0, [0, 2]].float(), rtol=1e-6, atol=0)
    assert weights[0, 3] == 0 and torch.isfinite(weights).all()
    gate = ops.cpu.swiglu(x, torch.ones_like(x), 1e9)[0]
    assert gate.tolist() == [x[0, 0].item(), 0.0, 30.0, gate[3].item()] and gate[3] < 0
