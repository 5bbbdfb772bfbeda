"""Weights reach their parameters bit for bit, or one error names everything that does not fit."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from deepinfer_core.errors import CheckpointError
from deepinfer_core.model_loader import (
    CheckpointIndex,
    WeightSpec,
    load_weights,
    materialize,
    reading,
    tied,
    warn_if_different,
)

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "F8_E4M3": torch.uint8}


def stored(tensor: torch.Tensor, dtype: str | None = None):
    name = dtype or next(name for name, value in DTYPES.items() if value == tensor.dtype)
    return name, list(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def model(**shapes) -> nn.Module:
    """A module with a meta parameter per keyword: ``name=(dtype, shape)``."""
    module = nn.Module()
    for name, (dtype, shape) in shapes.items():
        data = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
        module.register_parameter(name, nn.Parameter(data, requires_grad=False))
    return module


@pytest.fixture
def two_by_three(write_single):
    """A stack of two experts and a norm, in a checkpoint."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "experts.0": torch.randn(2, 3, generator=generator).bfloat16(),
        "experts.1": torch.randn(2, 3, generator=generator).bfloat16(),
        "norm": torch.randn(3, generator=generator),
    }
    index = CheckpointIndex.open(write_single({f"model.{name}": stored(value) for name, value in tensors.items()}))
    module = model(stack=("BF16", (2, 2, 3)), norm=("F32", (3,)))
    specs = [
        WeightSpec("experts.0", "stack", (0,)),
        WeightSpec("experts.1", "stack", (1,)),
        WeightSpec("norm", "norm"),
    ]
    return module, index, specs, tensors


def test_tensors_are_read_into_place(two_by_three):
    module, index, specs, tensors = two_by_three
    load_weights(module, index, specs)
    assert torch.equal(module.stack, torch.stack([tensors["experts.0"], tensors["experts.1"]]))
    assert torch.equal(module.norm, tensors["norm"])
    assert not module.norm.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", ["BF16", "F32"])
def test_an_accepted_floating_point_type_is_converted(write_single, dtype, wanted):
    value = torch.cat([torch.randn(200), torch.tensor([0.0, -0.0, 1e-7, 65504.0, torch.inf, torch.nan])]).to(dtype)
    name = {torch.float16: "F16", torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
    index = CheckpointIndex.open(write_single({"a": stored(value, name), "b": stored(value, name)}))
    module = model(w=(wanted, (2, len(value))))
    floats = ("BF16", "F16", "F32")
    load_weights(module, index, [WeightSpec("a", "w", (0,), floats), WeightSpec("b", "w", (1,), floats)])
    expected = value.to(DTYPES[wanted]).view(torch.uint8)
    assert all(torch.equal(row.view(torch.uint8), expected) for row in module.w)
    assert module.w.dtype == DTYPES[wanted]


def test_parts_of_a_parameter_may_be_slices(write_single):
    w1, w3 = torch.arange(6.0).reshape(2, 3), torch.arange(3.0).reshape(1, 3) - 7
    index = CheckpointIndex.open(write_single({"w1": stored(w1), "w3": stored(w3)}))
    module = model(gate_up=("F32", (3, 3)))
    specs = [WeightSpec("w1", "gate_up", (slice(0, 2),)), WeightSpec("w3", "gate_up", (slice(2, 3),))]
    load_weights(module, index, specs)
    assert torch.equal(module.gate_up, torch.cat([w1, w3]))


def test_codes_are_bytes(write_single):
    codes = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    index = CheckpointIndex.open(write_single({"w": stored(codes, "F8_E4M3"), "s": ("F8_E8M0", [1], b"\x7f")}))
    module = model(w=("U8", (2, 3)), s=("U8", (1,)))
    specs = [WeightSpec("w", "w", dtypes=("F8_E4M3",)), WeightSpec("s", "s", dtypes=("F8_E8M0", "U8"))]
    load_weights(module, index, specs)
    assert torch.equal(module.w, codes) and module.s.tolist() == [127]


def problems_of(module, index, specs, **options) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        load_weights(module, index, specs, **options)
    first, *lines = str(caught.value).split("\n  ")
    assert re.search(rf"\({len(lines)} problems?\)", first), first
    assert all(value.is_meta for value in module.parameters()), "nothing is allocated before the checks pass"
    return sorted(lines)


def test_every_problem_is_named_at_once(two_by_three):
    module, index, specs, _ = two_by_three
    module = model(stack=("BF16", (2, 2, 4)), norm=("BF16", (3,)), bias=("F32", (1,)))
    specs = [*specs[:1], *specs[2:], WeightSpec("experts.2", "stack", (1,)), WeightSpec("bias", "bias")]
    assert problems_of(module, index, specs) == [
        "missing: bias [1] F32",
        "missing: experts.2 [2, 4] BF16",
        "unexpected: experts.1 [2, 3] BF16",
        "wrong dtype: norm is F32, expected BF16",
        "wrong shape: experts.0 is [2, 3], expected [2, 4]",
    ]


def test_a_parameter_nobody_fills_is_an_error(two_by_three):
    module, index, specs, _ = two_by_three
    module.register_buffer("table", torch.empty(5, device="meta"))
    assert problems_of(module, index, specs) == ["weight map error: 0 of 5 values of table are filled"]


def test_a_part_filled_twice_is_an_error(two_by_three):
    module, index, specs, _ = two_by_three
    specs[1] = WeightSpec("experts.1", "stack", (0,))
    assert problems_of(module, index, specs) == ["weight map error: stack[0] is filled 2 times"]


def test_a_spec_for_no_parameter_is_an_error(two_by_three):
    module, index, specs, _ = two_by_three
    specs.append(WeightSpec("norm", "nrom"))
    assert problems_of(module, index, specs) == ["weight map error: norm is for nrom, which the model lacks"]


def test_ignored_tensors_need_a_reason(two_by_three, caplog):
    module, index, specs, _ = two_by_three
    module = model(stack=("BF16", (2, 2, 3)))
    caplog.set_level("INFO")
    load_weights(module, index, specs[:2], ignore=lambda name: "not used" if name == "norm" else None)
    assert "1 checkpoint tensors are not loaded: not used" in caplog.text


def test_a_non_contiguous_part_is_refused(write_single):
    index = CheckpointIndex.open(write_single({"a": stored(torch.zeros(2))}))
    with pytest.raises(ValueError, match="not contiguous"):
        load_weights(model(w=("F32", (2, 2))), index, [WeightSpec("a", "w", (slice(None), 0))])


def test_buffers_off_meta_are_left_alone(two_by_three):
    module, index, specs, _ = two_by_three
    module.register_buffer("table", torch.arange(4))
    load_weights(module, index, specs)
    assert module.table.tolist() == [0, 1, 2, 3]


def test_materialize_keeps_sharing_and_attributes():
    outer, inner = model(w=("F32", (2,))), nn.Module()
    inner.v = outer.w
    outer.inner = inner
    outer.w.stored_as = ("F32",)
    materialize(outer, "cpu")
    assert outer.w is outer.inner.v and not outer.w.is_meta
    assert outer.w.stored_as == ("F32",)


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=6),
    chunk=st.integers(1, 40),
    shards=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shapes_in_any_shards_and_chunks(write, monkeypatch, shapes, chunk, shards):
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk)
    tensors = {f"t{i}": torch.randn(shape) for i, shape in enumerate(shapes)}
    files: dict = {}
    for i, (name, value) in enumerate(tensors.items()):
        files.setdefault(f"{i % shards}.safetensors", {})[name] = stored(value)
    module = model(**{name: ("F32", tuple(value.shape)) for name, value in tensors.items()})
    load_weights(module, CheckpointIndex.open(write(files)), [WeightSpec(name, name) for name in tensors])
    assert all(torch.equal(getattr(module, name), value) for name, value in tensors.items())


def test_a_file_cut_after_the_checks(two_by_three):
    module, index, specs, _ = two_by_three
    path = index["norm"].shard
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"ended while reading 'model\.norm' in .*model\.safetensors"):
        load_weights(module, index, specs)


def test_a_file_gone_after_the_checks(two_by_three):
    module, index, specs, _ = two_by_three
    index["norm"].shard.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        load_weights(module, index, specs)


def test_the_watchdog_names_where_reading_is_stuck(two_by_three, monkeypatch):
    import threading

    module, index, specs, _ = two_by_three
    release = threading.Event()
    monkeypatch.setattr(reading, "read_into", lambda file, buffer: 0 * release.wait(10))
    try:
        with pytest.raises(
            CheckpointError, match=r"no progress for 0\.1 s: stuck at 'model\.experts\.0' in .*byte \d+"
        ):
            load_weights(module, index, specs, watchdog_seconds=0.1)
    finally:
        release.set()


def test_slow_but_steady_reading_is_not_stuck(two_by_three, monkeypatch):
    import time

    module, index, specs, tensors = two_by_three
    original = reading.read_into

    def slow(file, buffer):
        time.sleep(0.05)
        return original(file, buffer[:1])

    monkeypatch.setattr(reading, "read_into", slow)
    module = model(norm=("F32", (3,)))
    load_weights(module, index, specs[2:], ignore=lambda name: "other", watchdog_seconds=0.4)
    assert torch.equal(module.norm, tensors["norm"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's memory accounting")
def test_peak_memory_is_about_the_parameters(tmp_path):
    code = """
        import json, re, struct, sys
        import torch
        from torch import nn
        from deepinfer_core.model_loader import CheckpointIndex, WeightSpec, load_weights
        count, rows, columns = 25, 2048, 2048  # 25 x 8 MiB of bf16
        size = rows * columns * 2
        header = {str(i): {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [i * size, (i + 1) * size]}
                  for i in range(count)}
        text = json.dumps(header).encode()
        with open(sys.argv[1] + "/model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + count * size)
        module = nn.Module()
        module.stack = nn.Parameter(torch.empty(count, rows, columns, dtype=torch.bfloat16, device="meta"), False)
        specs = [WeightSpec(str(i), "stack", (i,)) for i in range(count)]
        def status(key):  # not ru_maxrss, which a child inherits from its parent
            return int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
        open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
        before = status("VmRSS")
        load_weights(module, CheckpointIndex.open(sys.argv[1]), specs)
        print((status("VmHWM") - before) / (count * size))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    ratio = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"peak memory / parameters: {ratio:.3f}")
    assert 0.95 < ratio <= 1.3


E, OTHER = torch.arange(4.0), torch.arange(4.0) + 1


@pytest.mark.parametrize(
    ("head", "warned"), [(None, False), (E, False), (OTHER, True), (OTHER[:3], True), (E.bfloat16(), True)]
)
def test_a_tied_head_that_differs_is_reported(write_single, caplog, head, warned):
    tensors = {"embed": stored(E)} | ({} if head is None else {"head": stored(head)})
    warn_if_different(CheckpointIndex.open(write_single(tensors)), "head", "embed")
    assert ("embed is used and head is ignored" in caplog.text) is warned


def test_untied_and_absent_is_missing(write_single):
    index = CheckpointIndex.open(write_single({"embed": stored(E)}))
    module = model(embed=("F32", (4,)), head=("F32", (4,)))
    specs = [WeightSpec("embed", "embed"), WeightSpec("head", "head")]
    assert problems_of(module, index, specs) == ["missing: head [4] F32"]


@given(at=st.integers(0, 39), chunk=st.integers(1, 50))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_comparison_sees_every_byte(write_single, monkeypatch, at, chunk):
    monkeypatch.setattr(tied, "CHUNK_BYTES", chunk)
    a = torch.arange(40, dtype=torch.uint8)
    b = a.clone()
    b[at] += 1
    index = CheckpointIndex.open(write_single({"a": stored(a), "same": stored(a), "b": stored(b)}))
    assert tied.same_bytes(index["a"], index["same"])
    assert not tied.same_bytes(index["a"], index["b"])
