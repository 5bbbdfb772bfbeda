"""What the layers need to know of a step's rows, computed on the host from the layer plan. Torch-free.

Layers of one ratio share what is computed for it. Everything follows from positions, slots and pages; nothing from
token ids, which may not be known here yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.cache import PAGE_TOKENS

from .cache import compress_ring, window_ring

if TYPE_CHECKING:
    from deepinfer_core.interfaces.model import BatchRows

    from .config import DeepseekV41Config

POSITIONS = "positions"
"""``[N]`` int32."""
WINDOW_PLACES = "window_places"
"""``[N]`` int64, flat place of each row in a layer's ring of window keys, -1 for none."""


def ratio_name(ratio: int, part: str) -> str:
    """Name of what layers of one compression ratio share. G groups of ``ratio`` tokens end in the step.

    visible: ``[N]`` int32, entries each row may read.
    positions: ``[G]`` int64, where a group's entry stands: at its first position.
    entries: ``[G]`` int64, flat entries of the page buffers.
    members: ``[G, ratio]`` int64, a group's rows: of this step, or ``-1 - place`` in the compressor's ring.
    ring_places: ``[N]`` int64, flat place of each row in the compressor's ring, -1 for none: of groups left open, and
    of those that positions processed again would open.

    The last two are there for ratios above 1 only.
    """
    return f"compressed.{ratio}.{part}"


def step_metadata(config: DeepseekV41Config, rollback: int, rows: BatchRows) -> dict[str, NDArray[Any]]:
    """All of it, by name."""
    found: dict[str, NDArray[Any]] = {
        POSITIONS: rows.positions.astype(np.int32),
        WINDOW_PLACES: rows.ring_places(window_ring(config, rollback)),
    }
    for ratio in config.plan.ratios:
        for part, values in _of_ratio(rows, ratio, compress_ring(ratio, rollback)).items():
            found[ratio_name(ratio, part)] = values
    return found


def _of_ratio(rows: BatchRows, ratio: int, ring: int) -> dict[str, NDArray[Any]]:
    """What :func:`ratio_name` lists."""
    entries_so_far = (rows.positions + 1) // ratio
    last = np.flatnonzero(entries_so_far * ratio == rows.positions + 1)
    entry = entries_so_far[last] - 1
    found: dict[str, NDArray[Any]] = {
        "visible": entries_so_far.astype(np.int32),
        "positions": entry * ratio,
        "entries": rows.page_entries(entry, PAGE_TOKENS // ratio, last),
    }
    if ratio > 1:
        found["members"] = _members(rows, last[:, None], ratio, ring)
        found["ring_places"] = rows.ring_places(ring)
    return found


def _members(rows: BatchRows, last: NDArray[np.int64], ratio: int, ring: int) -> NDArray[np.int64]:
    """``[G, ratio]``, given the groups' last rows ``[G, 1]``."""
    back = np.arange(ratio - 1, -1, -1)
    position = rows.positions[last] - back
    places = rows.slots[last].astype(np.int64) * ring + position % ring
    return np.where(position >= rows.starts[last], last - back, -1 - places)
