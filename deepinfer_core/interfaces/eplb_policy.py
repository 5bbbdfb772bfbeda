"""The ``eplb_policy`` seam: which rank holds which experts, decided from how often each was routed to.

The core counts, asks, checks the answer and moves the weights; a policy only decides. With more places than experts
the busiest ones get several copies, which share their rows evenly.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import ConfigError, PluginError


@attrs.frozen
class ExpertTopology:
    """Where experts can be: ``num_ranks`` ranks with ``slots_per_rank`` places each, the same in every layer.

    num_nodes: machines that the ranks are spread over evenly, in order; traffic inside one is cheaper.
    """

    num_ranks: int
    slots_per_rank: int
    num_nodes: int = 1

    def __attrs_post_init__(self) -> None:
        if min(self.num_ranks, self.slots_per_rank, self.num_nodes) < 1 or self.num_ranks % self.num_nodes:
            raise ConfigError(f"ranks and places must be at least 1, ranks a multiple of nodes, got {self}")

    @property
    def num_slots(self) -> int:
        """Places in all."""
        return self.num_ranks * self.slots_per_rank


@runtime_checkable
class EplbPolicy(Protocol):
    """A component of the seam. Called on the driver between steps, seldom; it must not keep what it was given."""

    def place(
        self, counts: NDArray[np.int64], topology: ExpertTopology, current: NDArray[np.int32] | None
    ) -> NDArray[np.int32]:
        """The placement ``[layers, num_ranks, slots_per_rank]`` int32: the expert that each place holds.

        counts: ``[layers, experts]`` int64, rows routed to each expert since the last call, read-only.
        topology: has at least as many places as there are experts.
        current: the placement in force, read-only, or None at the start. What stays where it is need not be moved.

        Every layer holds every expert, a rank none of them twice unless there are more places on it than experts.
        The same arguments give the same placement. What :func:`check_placement` refuses leaves the placement in
        force as it is, and an error in the log.
        """
        ...


def check_placement(placement: object, counts: NDArray[np.int64], topology: ExpertTopology) -> NDArray[np.int32]:
    """The placement, if it is one. Raises PluginError with what came and what was expected."""
    layers, experts = counts.shape
    shape = (layers, topology.num_ranks, topology.slots_per_rank)
    if not isinstance(placement, np.ndarray) or placement.dtype != np.int32 or placement.shape != shape:
        found = f"{getattr(placement, 'dtype', type(placement).__name__)} {list(getattr(placement, 'shape', ()))}"
        raise PluginError(f"place must return int32 {list(shape)}, got {found}")
    if placement.size and not (placement.min() >= 0 and placement.max() < experts):
        raise PluginError(f"experts must be in 0..{experts - 1}, got {placement.min()}..{placement.max()}")
    for layer in range(layers):
        missing = sorted(set(range(experts)) - set(placement[layer].ravel().tolist()))
        if missing:
            raise PluginError(f"layer {layer} must hold every expert, {missing} are missing")
        if topology.slots_per_rank <= experts:
            for rank, held in enumerate(placement[layer].tolist()):
                if len(set(held)) < len(held):
                    raise PluginError(f"rank {rank} of layer {layer} must hold an expert once, got {held}")
    return placement


def rank_loads(placement: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Rows that each rank gets, ``[layers, num_ranks]``, with an expert's rows shared evenly by its copies."""
    loads = np.zeros(placement.shape[:2])
    for layer, places in enumerate(placement):
        copies = np.bincount(places.ravel(), minlength=counts.shape[1])
        loads[layer] = (counts[layer] / np.maximum(copies, 1))[places].sum(-1)
    return loads
