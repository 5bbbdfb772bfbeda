"""Whether an output head shares the embedding's weight.

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


def head_is_tied(index: CheckpointIndex, tie_word_embeddings: bool, *, embedding: str, head: str) -> bool:
    """Apply the table above to the tensors named ``embedding`` and ``head``; reads them only to compare."""
    if tie_word_embeddings and head in index and embedding in index and not same_bytes(index[embedding], index[head]):
        logger.warning(
            "tie_word_embeddings is true but %s differs from %s in %s; the embedding is used and %s is ignored",
            head, embedding, index.path, head,
        )  # fmt: skip
    return tie_word_embeddings


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
