"""The cache layout, derived from the layer plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.interfaces.cache import PAGE_TOKENS, CacheLayout, StateBuffer
from deepinfer_kernels.codecs import CODECS, COMPRESSED_CODEC, INDEX_CODEC, WINDOW_CODEC

if TYPE_CHECKING:
    from .config import DeepseekV41Config


def buffer_name(layer: int | None, part: str) -> str:
    """Name of a layer's buffer: ``window``, ``compressed``, ``index_keys`` or ``compress_state``."""
    return f"layers.{layer}.{part}"


def window_ring(config: DeepseekV41Config, rollback: int) -> int:
    """Positions that a layer's ring of window keys holds.

    Rings are ``rollback`` longer than what is visible, so that a position processed again never finds its past
    overwritten.
    """
    return config.attention.window_size + rollback


def compress_ring(ratio: int, rollback: int) -> int:
    """Positions that a compressor's ring holds: an open group's, and ``rollback`` more. A ratio of 1 needs none."""
    return ratio - 1 + rollback


def cache_layout(config: DeepseekV41Config, rollback: int) -> CacheLayout:
    """Pages for the KV sources; per sequence, every layer's window ring and open compression groups."""
    dim = config.attention.head_dim
    window = (window_ring(config, rollback), CODECS[WINDOW_CODEC].record_bytes(dim))
    slots = [StateBuffer(buffer_name(layer.index, "window"), window, "uint8") for layer in config.plan.layers]
    pages = []
    for layer in config.plan.kv_owners:
        assert config.indexer is not None, "the layer plan admits KV sources only with index settings"
        entries = PAGE_TOKENS // layer.ratio
        for part, codec, width in (
            ("compressed", COMPRESSED_CODEC, dim),
            ("index_keys", INDEX_CODEC, config.indexer.head_dim),
        ):
            shape = (entries, CODECS[codec].record_bytes(width))
            pages.append(StateBuffer(buffer_name(layer.index, part), shape, "uint8"))
        if layer.ratio > 1:
            state = (compress_ring(layer.ratio, rollback), 2, dim)
            slots.append(StateBuffer(buffer_name(layer.index, "compress_state"), state, "float32"))
    return CacheLayout(tuple(pages), tuple(slots))
