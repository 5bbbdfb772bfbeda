"""What a model keeps between steps: buffers in pages (by token position) and in slots (one per sequence)."""

from __future__ import annotations

import math

import attrs

#: Tokens per page. Compressed caches hold fewer entries a page, never pages of another length.
PAGE_TOKENS = 128

_ITEM_BYTES = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}


@attrs.frozen
class StateBuffer:
    """One tensor of the cache.

    name: unique within its layout; the model finds its tensor under it.
    shape: of one page or one slot; the cache engine puts the number of pages or slots in front.
    dtype: ``uint8``, ``bfloat16``, ``float16`` or ``float32``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = attrs.field(validator=attrs.validators.in_(_ITEM_BYTES))

    @property
    def nbytes(self) -> int:
        """Bytes per page or slot."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@attrs.frozen
class CacheLayout:
    """All buffers of a model: ``pages`` are shareable between sequences, ``slots`` are not."""

    pages: tuple[StateBuffer, ...]
    slots: tuple[StateBuffer, ...]

    def __attrs_post_init__(self) -> None:
        names = [buffer.name for buffer in (*self.pages, *self.slots)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"cache buffers must have unique names, got {twice} more than once")

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all page buffers."""
        return sum(buffer.nbytes for buffer in self.pages)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one slot over all slot buffers."""
        return sum(buffer.nbytes for buffer in self.slots)
