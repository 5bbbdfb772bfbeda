"""Pages and slots: reference counts, order of reuse, and leases that cannot leak."""

from __future__ import annotations

import gc
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core._C import BlockManager


def test_the_null_block_is_never_handed_out() -> None:
    manager = BlockManager(5)
    leases = [manager.allocate() for _ in range(4)]
    assert [lease.id for lease in leases] == [1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="all 4 are leased"):
        manager.allocate()
    manager.audit()


def test_the_block_freed_longest_ago_is_reused_first() -> None:
    manager = BlockManager(4)
    leases = {lease.id: lease for lease in (manager.allocate() for _ in range(3))}
    for block in (2, 3, 1):
        leases[block].release()
    assert [manager.allocate().id, manager.allocate().id] == [2, 3]


def test_a_pinned_block_is_free_after_its_last_lease() -> None:
    manager = BlockManager(2)
    first = manager.allocate()
    second = manager.pin(first.id)
    first.release()
    assert (manager.ref_count(1), manager.num_free) == (1, 0)
    second.release()
    assert (manager.ref_count(1), manager.num_free) == (0, 1)


def test_releasing_twice_gives_back_one_reference() -> None:
    manager = BlockManager(2)
    lease = manager.allocate()
    other = manager.pin(lease.id)
    lease.release()
    lease.release()
    assert lease.id == 0
    assert manager.ref_count(other.id) == 1


def test_destroying_a_lease_returns_its_block() -> None:
    manager = BlockManager(2)
    lease = manager.allocate()
    del lease
    gc.collect()
    assert manager.num_free == 1


def test_a_lease_keeps_its_manager_alive() -> None:
    lease = BlockManager(2).allocate()
    gc.collect()
    assert lease.id == 1
    lease.release()


@pytest.mark.parametrize("num_blocks", [1, 0, -3])
def test_too_few_blocks_are_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"at least 2 .* got {num_blocks}"):
        BlockManager(num_blocks)


@pytest.mark.parametrize(("block", "message"), [(1, "block 1 is free"), (0, "block 0 is free"), (9, "got 9")])
def test_only_owned_blocks_can_be_pinned(block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockManager(3).pin(block)


@given(st.integers(2, 6), st.lists(st.tuples(st.sampled_from(["allocate", "pin", "release"]), st.integers(0, 99))))
def test_any_trace_agrees_with_a_plain_model(num_blocks: int, trace: list[tuple[str, int]]) -> None:
    manager = BlockManager(num_blocks)
    free = deque(range(1, num_blocks))
    leases = []
    for verb, choice in trace:
        if verb == "allocate" and free:
            leases.append(manager.allocate())
            assert leases[-1].id == free.popleft()
        elif verb == "pin" and leases:
            leases.append(manager.pin(leases[choice % len(leases)].id))
        elif verb == "release" and leases:
            block = leases.pop(choice % len(leases)).id
            if all(lease.id != block for lease in leases):
                free.append(block)
        manager.audit()
        counts = [sum(lease.id == block for lease in leases) for block in range(num_blocks)]
        assert [manager.ref_count(block) for block in range(num_blocks)] == counts
        assert manager.num_free == len(free)
