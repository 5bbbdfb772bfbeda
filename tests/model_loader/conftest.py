"""Small checkpoints, written by hand so that they can also be written wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Tensors = Mapping[str, tuple[str, list[int], bytes]]


def encode(tensors: Tensors, edit: Callable[[dict[str, Any]], None] = lambda header: None) -> bytes:
    """A safetensors file of ``name -> (dtype, shape, data)``; ``edit`` may spoil the header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write ``file -> tensors`` as a checkpoint folder with an index; ``weight_map`` overrides its contents."""

    def make(shards: Mapping[str, Tensors], weight_map: Mapping[str, str] | None = None) -> Path:
        for file, tensors in shards.items():
            (tmp_path / file).write_bytes(encode(tensors))
        mapping = {name: file for file, tensors in shards.items() for name in tensors}
        index = {"metadata": {}, "weight_map": mapping if weight_map is None else dict(weight_map)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        return tmp_path

    return make


@pytest.fixture
def write_single(tmp_path: Path) -> Callable[..., Path]:
    """Write one ``model.safetensors`` without an index; returns the folder."""

    def make(tensors: Tensors, edit: Callable[[dict[str, Any]], None] = lambda header: None) -> Path:
        (tmp_path / "model.safetensors").write_bytes(encode(tensors, edit))
        return tmp_path

    return make
