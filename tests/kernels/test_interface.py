"""The op interface: what is refused, how it says so, and when anything is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from deepinfer_kernels import interface, ops
from deepinfer_kernels.errors import KernelUnavailableError
from deepinfer_kernels.weights import DenseWeight, Fp4Weight, Fp8Weight

X = torch.zeros(3, 64, dtype=torch.bfloat16)
W = torch.ones(64, dtype=torch.bfloat16)


def test_every_op_has_a_reference_a_native_kernel_and_a_docstring():
    for op in interface.__all__:
        assert callable(getattr(ops.reference, op))
        assert callable(getattr(ops.cpu, op))
        assert getattr(interface, op).__doc__


@pytest.mark.parametrize("family", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda o: o.rms_norm(X, W[:32], 1e-6), ValueError, r"weight must have shape \[64\], got \[32\]"),
        (lambda o: o.rms_norm(X.half(), W, 1e-6), TypeError, "x must have dtype torch.bfloat16 or torch.float32"),
        (lambda o: o.rms_norm(X.T, W[:3], 1e-6), ValueError, "x must be contiguous"),
        (lambda o: o.rms_norm([1.0], W, 1e-6), TypeError, "x must be a torch.Tensor, got list"),
        (lambda o: o.linear(X, DenseWeight(X[:, :32].contiguous()), torch.float32), ValueError, "x must have shape"),
        (lambda o: o.linear(X, DenseWeight(X), torch.float16), TypeError, "out_dtype must be"),
        (lambda o: o.linear(X, X, torch.float32), TypeError, "weight must be a DenseWeight"),
        (lambda o: o.pack_kv(X, "fp9"), ValueError, "codec must be one of"),
        (lambda o: o.pack_kv(X[:, :24].contiguous(), "fp8_e8m0_32"), ValueError, "multiple of 32, got 24"),
        (lambda o: o.route_experts(X, X, W[:3].float(), 4, 1.0, True), ValueError, r"k must be in 1\.\.3"),
    ],
)
def test_wrong_arguments_name_what_came_and_what_is_expected(family, call, error, words):
    with pytest.raises(error, match=words):
        call(ops.family(family))


def test_indices_outside_their_tables_are_refused():
    """By the native kernels, which would follow them."""
    namespace = ops.cpu
    cache, records = torch.zeros(2, 4, 8, dtype=torch.uint8), torch.zeros(1, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="slots must be below 8"):
        namespace.store_records(cache, torch.tensor([8]), records)
    stack = DenseWeight(torch.zeros(2, 64, 64, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.1"):
        namespace.moe_experts(
            X, torch.full((3, 1), 2, dtype=torch.int32), torch.ones(3, 1), stack, stack, stack, 1.0, False
        )
    rows, state = torch.zeros(3, 8), torch.zeros(2, 4, 2, 8)
    for member, words in ((3, "members must be below 3 .*, got 3"), (-9, "-1 - members must be below 8 .*, got 8")):
        with pytest.raises(ValueError, match=words):
            namespace.compress_pool(rows, rows, state, torch.tensor([[0, member]]))
    with pytest.raises(ValueError, match=r"places must be below 8 \(places of state\), got 8"):
        namespace.store_compress_state(rows, rows, state, torch.tensor([-1, 0, 8]))


def test_entries_beyond_the_block_table_are_refused():
    def choose(visible: int, sequence: int = 0) -> None:
        ops.cpu.index_topk(
            torch.ones(1, 2, 32, dtype=torch.bfloat16),
            torch.ones(1, 2, dtype=torch.bfloat16),
            torch.zeros(3, 8, 17, dtype=torch.uint8),
            torch.tensor([[1, 2]], dtype=torch.int32),
            torch.tensor([sequence], dtype=torch.int32),
            torch.tensor([visible], dtype=torch.int32),
            4,
            None,
            0,
            0,
        )

    choose(16)
    with pytest.raises(ValueError, match=r"visible - 1 must be below 16 .*, got 16"):
        choose(17)
    with pytest.raises(ValueError, match="seq_of_row must be below 1"):
        choose(4, sequence=1)


def test_weight_parts_must_agree():
    data = torch.zeros(64, 64, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"weight.scale must have shape \[2, 2\], got \[1, 2\]"):
        ops.cpu.linear(X, Fp8Weight(data, torch.zeros(1, 2, dtype=torch.uint8)), torch.float32)
    with pytest.raises(ValueError, match=r"weight.scale must have shape \[64, 4\]"):
        ops.cpu.linear(X, Fp4Weight(data, torch.zeros(64, 2, dtype=torch.uint8)), torch.float32)


def test_unavailable_kernels_name_the_op_the_family_and_the_remedy():
    with pytest.raises(KernelUnavailableError, match="deepinfer-plugin-sm100"):
        ops.cuda.rms_norm(X, W, 1e-6)
    with pytest.raises(KernelUnavailableError, match="known families: cpu, reference"):
        ops.family("tpu")
    with pytest.raises(AttributeError, match="did you mean 'rms_norm'"):
        ops.cpu.rms_nrm(X, W, 1e-6)


def test_an_op_a_family_lacks_is_reported_when_it_is_used(monkeypatch):
    from deepinfer_kernels import cpu

    monkeypatch.delattr(cpu, "swiglu")
    lacking = ops.KernelFamily("cpu", cpu)
    with pytest.raises(KernelUnavailableError, match=r"op 'swiglu' on backend 'cpu'"):
        lacking.swiglu(X, X, 1.0)
    assert lacking.rms_norm(X, W, 1e-6).shape == X.shape


def test_families_are_imported_on_first_use():
    code = (
        "import sys; from deepinfer_kernels import ops, codecs; "
        "assert not {'torch', 'deepinfer_kernels.cpu', 'deepinfer_kernels.reference'} & set(sys.modules); "
        "ops.reference; assert 'deepinfer_kernels._cpu' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
