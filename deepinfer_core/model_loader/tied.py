"""Tensors that share another's weight, such as an output head tied to the embedding.

| ``tie_word_embeddings`` | head tensor | result |
|---|---|---|
| true | absent, or equal to the embedding | tied |
| true | different | tied, with a warning: the config decides |
| false or absent | present | not tied |
| false or absent | absent | not tied, and so the loader reports the head as missing |
"""

from __future__ import annotations

import logging
from typing import BinaryIO

from deepinfer_core.model_loader.checkpoint import CheckpointIndex, TensorInfo
from deepinfer_core.model_loader.reading import CHUNK_BYTES

logger = logging.getLogger(__name__)


def warn_if_different(index: CheckpointIndex, name: str, used_instead: str) -> None:
    """Warn when the checkpoint holds a tied tensor that differs from the one used in its place."""
    if name in index and used_instead in index and not same_bytes(index[name], index[used_instead]):
        logger.warning(
            "%s is tied but differs from %s in %s; %s is used and %s is ignored",
            name, used_instead, index.path, used_instead, name,
        )  # fmt: skip


def same_bytes(a: TensorInfo, b: TensorInfo) -> bool:
    """Whether two stored tensors are identical, read a chunk at a time."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with a.shard.open("rb") as first, b.shard.open("rb") as second:
        first.seek(a.begin)
        second.seek(b.begin)
        return all(_same(first, second, min(CHUNK_BYTES, a.nbytes - at)) for at in range(0, a.nbytes, CHUNK_BYTES))


def _same(first: BinaryIO, second: BinaryIO, count: int) -> bool:
    return first.read(count) == second.read(count)
