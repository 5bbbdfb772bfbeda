"""Conformance of ``eplb_policy`` components."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from deepinfer_core.interfaces.eplb_policy import EplbPolicy, ExpertTopology, check_placement, rank_loads
from deepinfer_core.testing.suite import Suite

Counts = NDArray[np.int64]

TOPOLOGIES = (
    ExpertTopology(1, 8), ExpertTopology(4, 2), ExpertTopology(4, 3), ExpertTopology(8, 5, num_nodes=2),
    ExpertTopology(2, 20), ExpertTopology(16, 9, num_nodes=4),
)  # fmt: skip


def loads(experts: int, layers: int = 3) -> Iterator[tuple[str, Counts]]:
    """What routers do: nothing, everything to one expert, powers of two, and random counts."""
    yield "nothing routed yet", np.zeros((layers, experts), np.int64)
    yield "equal", np.full((layers, experts), 7, np.int64)
    hot = np.zeros((layers, experts), np.int64)
    hot[np.arange(layers), np.arange(layers) % experts] = 10**15
    yield "one hot expert", hot
    yield "skewed", np.tile(2 ** (np.arange(experts, dtype=np.int64) % 40), (layers, 1))
    for seed in range(5):
        yield f"random {seed}", np.random.default_rng(seed).zipf(1.5, (layers, experts)).clip(max=10**9)


def frozen(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """A read-only copy."""
    counts = counts.copy()
    counts.flags.writeable = False
    return counts


class EplbPolicySuite(Suite):
    """Placements hold every expert, whatever the counts, and spread a skewed load at least as well as none would."""

    seam = "eplb_policy"

    def experts(self, topology: ExpertTopology) -> list[int]:
        """Numbers of experts that fit."""
        return sorted({1, max(1, topology.num_slots // 2), topology.num_slots})

    @pytest.fixture(params=TOPOLOGIES, ids=lambda t: f"{t.num_ranks}x{t.slots_per_rank}")
    def topology(self, request: pytest.FixtureRequest) -> ExpertTopology:
        """Ranks and places."""
        topology: ExpertTopology = request.param
        return topology

    def test_placements_are_legal(self, component: EplbPolicy, topology: ExpertTopology) -> None:
        """Every expert in every layer, none twice on a rank, int32, the right shape."""
        for experts in self.experts(topology):
            for name, counts in loads(experts):
                placement = component.place(frozen(counts), topology, None)
                try:
                    check_placement(placement, counts, topology)
                except Exception as error:
                    pytest.fail(f"{experts} experts, {name}: {error}")

    def test_a_placement_in_force_may_be_given(self, component: EplbPolicy, topology: ExpertTopology) -> None:
        """It is read, not written, and the next one is legal too."""
        for experts in self.experts(topology):
            current: NDArray[np.int32] | None = None
            for _, counts in loads(experts):
                before = None if current is None else current.copy()
                placement = check_placement(component.place(frozen(counts), topology, current), counts, topology)
                if current is not None and before is not None:
                    assert np.array_equal(current, before), "the placement in force was written to"
                current = placement.copy()
                current.flags.writeable = False

    def test_the_same_counts_give_the_same_placement(self, component: EplbPolicy, topology: ExpertTopology) -> None:
        """Every rank decides by itself: a policy that differs would tear the model apart."""
        twin = copy.deepcopy(component)
        for experts in self.experts(topology):
            for name, counts in loads(experts):
                one, other = (each.place(frozen(counts), topology, None) for each in (component, twin))
                assert np.array_equal(one, other), f"{experts} experts, {name}"

    def test_a_skewed_load_is_spread(self, component: EplbPolicy, topology: ExpertTopology) -> None:
        """The busiest rank has no more to do than if experts were laid out in order."""
        experts = topology.num_slots // 2
        if topology.num_ranks == 1 or experts < topology.num_ranks:
            pytest.skip("there is nothing to spread: one rank, or fewer experts than ranks")
        counts = np.tile(np.sort(np.random.default_rng(0).zipf(1.6, experts))[::-1].clip(max=10**6), (2, 1))
        in_order = np.arange(topology.num_slots, dtype=np.int32) * experts // topology.num_slots
        plain = rank_loads(np.tile(in_order.reshape(1, topology.num_ranks, -1), (2, 1, 1)), counts)
        placed = rank_loads(component.place(frozen(counts), topology, None), counts)
        assert (placed.max(1) <= plain.max(1) * (1 + 1e-9)).all(), f"busiest {placed.max(1)}, in order {plain.max(1)}"
