"""What a safetensors checkpoint holds, from its headers alone. Torch-free; no weights are read here.

Format: 8 bytes little-endian header length, a JSON header, then the data, which the tensors' byte ranges
tile without holes (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from deepinfer_core.errors import CheckpointError
from deepinfer_core.model_loader.hf_config import parse_json_table, read_json_table

#: Bytes per element of each storable type.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

_MAX_HEADER_BYTES = 100_000_000
_INDEX_FILE = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"


@attrs.frozen
class TensorInfo:
    """Where one tensor lies: ``nbytes`` bytes from ``begin`` (from the start of the file) in ``shard``."""

    name: str
    """Without the optional ``model.`` prefix."""
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    shard: Path
    begin: int
    nbytes: int


class CheckpointIndex(Mapping[str, TensorInfo]):
    """Every tensor of a checkpoint by its name without prefix. Open one with :meth:`open`."""

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo]) -> None:
        self.path = path
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @classmethod
    def open(cls, path: str | Path) -> CheckpointIndex:
        """Read the headers in folder ``path``: ``model.safetensors.index.json`` and its shards, or
        ``model.safetensors``. Raises CheckpointError for anything missing, damaged or ambiguous.
        """
        folder = Path(path)
        if (folder / _INDEX_FILE).is_file():
            stored = _read_indexed(folder)
        elif (folder / _SINGLE_FILE).is_file():
            stored = read_header(folder / _SINGLE_FILE)
        else:
            raise CheckpointError(f"{folder} has neither {_INDEX_FILE} nor {_SINGLE_FILE}")
        tensors: dict[str, TensorInfo] = {}
        for tensor in stored:
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise CheckpointError(
                    f"{folder} has both {other.stored_name!r} and {tensor.stored_name!r}, which name the same weight"
                )
        return cls(folder, tensors)


def read_header(path: Path) -> list[TensorInfo]:
    """The tensors of one safetensors file. Raises CheckpointError when the file breaks the format."""
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            header, start = _read_header_json(path, file, size)
    except OSError as cause:
        raise CheckpointError(f"cannot read {path}: {cause.strerror}") from cause
    header.pop("__metadata__", None)
    tensors = [_tensor(path, name, entry, start) for name, entry in header.items()]
    _check_tiling(path, tensors, start, size)
    return tensors


def _read_header_json(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The parsed header and the offset at which data starts."""
    if size < 8:
        raise CheckpointError(f"{path} is truncated: {size} bytes, but a safetensors file starts with 8 for its header")
    (length,) = struct.unpack("<Q", file.read(8))
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is not a safetensors file: its header would have {length} bytes")
    if 8 + length > size:
        raise CheckpointError(f"{path} is truncated: {size} bytes, but its header alone ends at {8 + length}")
    return parse_json_table(file.read(length), f"the header of {path}", CheckpointError), 8 + length


def _tensor(path: Path, name: str, entry: Any, start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise CheckpointError(f"the header of {path} has no valid dtype, shape and data_offsets for {name!r}")
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"{name!r} in {path} has the unknown dtype {dtype!r} (known: {', '.join(ITEM_BYTES)})")
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != nbytes:
        raise CheckpointError(
            f"{name!r} in {path} has data_offsets for {end - begin} bytes, but shape {list(shape)} of {dtype} "
            f"takes {nbytes}"
        )
    return TensorInfo(name.removeprefix("model."), name, dtype, shape, path, start + begin, nbytes)


def _check_tiling(path: Path, tensors: list[TensorInfo], start: int, size: int) -> None:
    """Byte ranges must follow each other and fill the file: no overlap, no hole, nothing beyond the end."""
    position, previous = start, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.nbytes)):
        if tensor.begin != position:
            kind = "overlaps" if tensor.begin < position else "leaves a hole after"
            raise CheckpointError(f"{tensor.stored_name!r} in {path} {kind} {previous}: the file is damaged")
        position, previous = tensor.begin + tensor.nbytes, repr(tensor.stored_name)
    if position != size:
        kind = "truncated" if size < position else "damaged"
        raise CheckpointError(f"{path} is {kind}: {size} bytes, but its tensors end at {position}")


def _read_indexed(folder: Path) -> list[TensorInfo]:
    """Tensors of all shards; the index and the headers must agree on who holds what."""
    weight_map = read_json_table(folder / _INDEX_FILE, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / _INDEX_FILE} has no weight_map of tensor names to files")
    shards = sorted(set(map(str, weight_map.values())))
    for shard in shards:
        if Path(shard).name != shard:
            raise CheckpointError(f"{folder / _INDEX_FILE} names {shard!r}, which is not a file of that folder")
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / _INDEX_FILE} names {shard!r}, which is missing")
    found: dict[str, TensorInfo] = {}
    for shard in shards:
        for tensor in read_header(folder / shard):
            other = found.setdefault(tensor.stored_name, tensor)
            if other is not tensor:
                raise CheckpointError(f"{tensor.stored_name!r} is in both {other.shard.name} and {shard}")
    _check_index(folder, weight_map, found)
    return list(found.values())


def _check_index(folder: Path, weight_map: Mapping[str, str], found: Mapping[str, TensorInfo]) -> None:
    holders = {name: tensor.shard.name for name, tensor in found.items()}
    lacking = [f"{shard} lacks {name!r}" for name, shard in weight_map.items() if holders.get(name) != shard]
    unlisted = [f"{name!r} in {shard} is not listed" for name, shard in holders.items() if name not in weight_map]
    problems = lacking + unlisted
    if problems:
        raise CheckpointError(f"{folder / _INDEX_FILE} and its files disagree: {shorten(problems)}")


def shorten(items: list[str], limit: int = 20, separator: str = "; ") -> str:
    """Join ``items``, the first ``limit`` of them, and say how many are left out."""
    more = f"{separator}and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more
