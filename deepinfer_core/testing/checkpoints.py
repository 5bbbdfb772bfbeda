"""Checkpoints of random weights, for any architecture."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.interfaces.model import Architecture, ModelContext
from deepinfer_core.testing.toy import TOY_CONFIG, ToyArchitecture

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_random_checkpoint(
    folder: Path, architecture: Architecture, hf_config: Mapping[str, Any], kernels: Any = None, seed: int = 0
) -> Path:
    """A checkpoint of ``hf_config`` in ``folder``, with values that keep activations of order one.

    Raises ValueError for a tensor that is not of a floating-point type: of those a model's author has to make one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(hf_config)))
    model = architecture.build(architecture.translate_config(hf_config), ModelContext(kernels=kernels))
    parameters = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in model.weight_specs():
        part = parameters[spec.parameter][spec.index] if spec.index else parameters[spec.parameter]
        dtype = _DTYPES.get(spec.dtypes[0]) if spec.dtypes else part.dtype
        if dtype not in _NAMES:
            raise ValueError(f"{spec.name} is stored as {spec.dtypes or part.dtype}, which has no random values")
        tensors[spec.name] = _random(tuple(part.shape), generator).to(dtype)
    (folder / "model.safetensors").write_bytes(_encode(tensors))
    return folder


def write_toy_checkpoint(folder: Path) -> Path:
    """A checkpoint of the toy model."""
    return write_random_checkpoint(folder, ToyArchitecture(), TOY_CONFIG)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    return values / shape[-1] ** 0.5 if len(shape) > 1 else 1 + values / 10


def _encode(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors format: the header's length, the header, the data."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        span = [len(data), len(data) + len(content)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
