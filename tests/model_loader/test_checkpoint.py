"""Damaged, incomplete or ambiguous checkpoints are refused from their headers, with names."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer_core.errors import CheckpointError
from deepinfer_core.model_loader import CheckpointIndex
from deepinfer_core.model_loader.checkpoint import read_header

DATA = Path(__file__).parents[1] / "data"
A = ("U8", [2, 3], bytes(range(6)))
B = ("F32", [1], b"\0\0\x80?")


@pytest.mark.parametrize("name", ["v41-tiny-bf16", "v41-tiny-fp8fp4", "v41-long-fp8fp4"])
def test_headers_agree_with_the_safetensors_library(name):
    safetensors = pytest.importorskip("safetensors")
    index = CheckpointIndex.open(DATA / name)
    with safetensors.safe_open(DATA / name / "model.safetensors", "np") as file:
        assert set(index) == set(file.keys())
        for key in file.keys():  # noqa: SIM118
            part = file.get_slice(key)
            assert (list(index[key].shape), index[key].dtype) == (part.get_shape(), part.get_dtype())


def test_total_is_the_file_without_its_header():
    path = DATA / "v41-tiny-bf16" / "model.safetensors"
    (header,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert CheckpointIndex.open(path.parent).nbytes == path.stat().st_size - 8 - header


def test_shards_and_prefix(write):
    folder = write({"one.safetensors": {"model.a": A}, "two.safetensors": {"b": B}})
    index = CheckpointIndex.open(folder)
    assert set(index) == {"a", "b"}
    assert index["a"].stored_name == "model.a" and index["a"].shard.name == "one.safetensors"
    begin = index["b"].begin
    assert (folder / "two.safetensors").read_bytes()[begin : begin + index["b"].nbytes] == B[2]


def test_single_file_without_index(write_single):
    assert CheckpointIndex.open(write_single({"a": A}))["a"].shape == (2, 3)


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        CheckpointIndex.open(folder)
    for word in words:
        assert word in str(caught.value)


def test_empty_folder(tmp_path):
    refused(tmp_path, "has neither", "model.safetensors.index.json", str(tmp_path))


def test_missing_shard(write):
    folder = write({"one.safetensors": {"a": A}}, {"a": "one.safetensors", "b": "two.safetensors"})
    refused(folder, "'two.safetensors'", "missing")


def test_shard_lacks_a_tensor(write):
    folder = write({"one.safetensors": {"a": A}}, {"a": "one.safetensors", "b": "one.safetensors"})
    refused(folder, "one.safetensors lacks 'b'")


def test_tensor_listed_for_the_wrong_shard(write):
    shards = {"one.safetensors": {"a": A}, "two.safetensors": {"b": B}}
    refused(write(shards, {"a": "two.safetensors", "b": "one.safetensors"}), "two.safetensors lacks 'a'")


def test_unlisted_tensor(write):
    folder = write({"one.safetensors": {"a": A, "b": B}}, {"a": "one.safetensors"})
    refused(folder, "'b' in one.safetensors is not listed")


def test_same_tensor_in_two_shards(write):
    shards = {"one.safetensors": {"a": A, "c": B}, "two.safetensors": {"a": A, "b": B}}
    refused(write(shards), "'a'", "one.safetensors", "two.safetensors")


def test_prefix_makes_two_names_one(write_single):
    refused(write_single({"a": A, "model.a": A}), "'a'", "'model.a'", "same weight")


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd"])
def test_index_cannot_leave_the_folder(write, file):
    refused(write({}, {"a": file}), repr(file), "not a file of that folder")


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_without_map(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "no weight_map")


def test_index_that_is_not_json(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": ')
    refused(tmp_path, "not valid JSON", "line 1")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda h: h["a"].update(dtype="F7"), ["'a'", "F7", "known"]),
        (lambda h: h["a"].update(shape=[2, 4]), ["'a'", "6 bytes", "takes 8"]),
        (lambda h: h["a"].update(shape=[-2, -3]), ["'a'", "no valid"]),
        (lambda h: h["a"].update(shape=[True, 6]), ["'a'", "no valid"]),
        (lambda h: h["a"].update(shape=6), ["'a'", "no valid"]),
        (lambda h: h["a"].pop("data_offsets"), ["'a'", "no valid"]),
        (lambda h: h.update(a=3), ["'a'", "no valid"]),
        (lambda h: h["b"].update(data_offsets=[4, 8]), ["'b'", "overlaps"]),
        (lambda h: h["b"].update(data_offsets=[8, 12]), ["'b'", "hole"]),
        (lambda h: h.pop("b"), ["damaged"]),
    ],
)
def test_spoiled_header(write_single, edit, words):
    refused(write_single({"a": A, "b": B}, edit), "model.safetensors", *words)


def test_header_length_is_bounded(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    refused(tmp_path, "not a safetensors file")


def test_header_that_is_not_json(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"nope")
    refused(tmp_path, "the header of", "not valid JSON")


def test_header_with_a_repeated_name(tmp_path):
    entry = '{"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}'
    text = f'{{"a": {entry}, "a": {entry}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    refused(tmp_path, "'a' twice")


@given(cut=st.integers(min_value=0))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_truncation_is_noticed(tmp_path, cut):
    whole = (DATA / "v41-tiny-bf16" / "model.safetensors").read_bytes()[:50_000]
    header = struct.unpack("<Q", whole[:8])[0]
    assert 8 + header < len(whole), "cuts must fall in the header and in the data"
    (tmp_path / "cut.safetensors").write_bytes(whole[: cut % len(whole)])
    with pytest.raises(CheckpointError, match="truncated"):
        read_header(tmp_path / "cut.safetensors")


@given(position=st.integers(0, 200), byte=st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_flipped_header_byte_is_an_error_or_harmless(write_single, position, byte):
    path = write_single({"a": A, "b": B}) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[position % len(content)] = byte
    path.write_bytes(content)
    try:
        tensors = read_header(path)
    except CheckpointError as error:
        assert "model.safetensors" in str(error)
    else:
        assert sum(tensor.nbytes for tensor in tensors) == 10


def test_reading_an_index_needs_no_torch():
    code = (
        "import sys; from deepinfer_core.model_loader import CheckpointIndex as C, load_hf_config as h\n"
        f"C.open({str(DATA / 'v41-tiny-bf16')!r}); h({str(DATA / 'v41-tiny-bf16')!r})\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_index_names_every_tensor_of_the_golden_map():
    index = json.loads((DATA / "v41-tiny-fp8fp4" / "model.safetensors.index.json").read_text())
    assert set(CheckpointIndex.open(DATA / "v41-tiny-fp8fp4")) == set(index["weight_map"])
