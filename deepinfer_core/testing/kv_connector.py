"""Conformance of ``kv_connector`` components."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from deepinfer_core.interfaces.kv_connector import KvCaches, KvConnector, KvTransfer
from deepinfer_core.testing.suite import Suite

PAGES, SLOTS = 24, 6
TIMEOUT_SECONDS = 30.0


def keys(name: str, count: int) -> tuple[bytes, ...]:
    """Keys of a prefix's pages; those of equal names are equal."""
    return tuple(f"{name}/{i}".encode() for i in range(count))


def make_caches(seed: int) -> KvCaches:
    """Small caches full of random bits, of every dtype that a layout may have."""
    generator = torch.Generator().manual_seed(seed)

    def bits(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    return KvCaches(
        pages={"compressed": bits(PAGES, 128, 9), "keys": bits(PAGES, 4, 8).view(torch.bfloat16)},
        slots={"window": bits(SLOTS, 7, 3), "state": bits(SLOTS, 16).view(torch.float32)},
    )


def bits_of(caches: KvCaches, pages: Sequence[int], slots: Sequence[int]) -> list[bytes]:
    """The bits of some pages and slots."""
    parts = [tensor[list(pages)] for tensor in caches.pages.values()]
    parts += [tensor[list(slots)] for tensor in caches.slots.values()]
    return [part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts]


class KvConnectorSuite(Suite):
    """What is saved comes back bit for bit; what is not named stays; every transfer is reported once."""

    seam = "kv_connector"

    @pytest.fixture
    def caches(self) -> KvCaches:
        """The caches that the component is attached to."""
        return make_caches(0)

    @pytest.fixture
    def connector(self, component: KvConnector, caches: KvCaches) -> Iterator[KvConnector]:
        """The component, attached."""
        component.attach(caches)
        yield component
        component.close()

    def wait(self, connector: KvConnector, *ids: int) -> dict[int, str | None]:
        """Poll until these transfers are reported; their errors."""
        results: dict[int, str | None] = {}
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not set(ids) <= results.keys():
            assert time.monotonic() < deadline, f"transfers {set(ids) - results.keys()} were never reported"
            for result in connector.finished():
                assert result.transfer_id not in results, f"transfer {result.transfer_id} was reported twice"
                results[result.transfer_id] = result.error
            time.sleep(0.001)
        assert set(results) == set(ids), "a transfer was reported that nobody asked for"
        return results

    def save(self, connector: KvConnector, transfer: KvTransfer) -> None:
        """Save and wait."""
        connector.save([transfer])
        assert self.wait(connector, transfer.transfer_id) == {transfer.transfer_id: None}

    def test_an_empty_store_finds_nothing(self, connector: KvConnector) -> None:
        """And answers once per prefix."""
        assert list(connector.find([])) == [] and list(connector.finished()) == []
        assert list(connector.find([keys("unknown", 3), keys("other", 1)])) == [0, 0]

    def test_a_saved_prefix_is_found_and_comes_back_elsewhere(self, connector: KvConnector, caches: KvCaches) -> None:
        """Bit for bit, in other pages and another slot; everything else keeps its bits."""
        self.save(connector, KvTransfer(1, keys("a", 3), (4, 9, 2), 1))
        assert list(connector.find([keys("a", 3), keys("b", 3)])) == [3, 0]
        saved = bits_of(caches, (4, 9, 2), (1,))
        others = [p for p in range(PAGES) if p not in (11, 3, 20)], [s for s in range(SLOTS) if s != 5]
        untouched = bits_of(caches, *others)
        connector.load([KvTransfer(2, keys("a", 3), (11, 3, 20), 5)])
        assert self.wait(connector, 2) == {2: None}
        assert bits_of(caches, (11, 3, 20), (5,)) == saved
        assert bits_of(caches, *others) == untouched, "pages or slots that the transfer does not name were written"

    def test_a_longer_prompt_finds_the_saved_start(self, connector: KvConnector) -> None:
        """As far as pages and the state at their end are there."""
        self.save(connector, KvTransfer(1, keys("a", 2), (1, 2), 1))
        (found,) = connector.find([keys("a", 5)])
        assert found == 2

    def test_the_state_belongs_to_the_end_of_its_prefix(self, connector: KvConnector, caches: KvCaches) -> None:
        """A prefix and its continuation have a state each; a shorter start without one cannot be gone on from."""
        self.save(connector, KvTransfer(1, keys("a", 2), (1, 2), 1))
        self.save(connector, KvTransfer(2, keys("a", 4), (6, 7), 2, first=2))
        assert list(connector.find([keys("a", 1), keys("a", 2), keys("a", 3), keys("a", 4)])) == [0, 2, 2, 4]
        for transfer_id, count, pages, slot in ((3, 2, (1, 2), 1), (4, 4, (1, 2, 6, 7), 2)):
            target = tuple(range(12, 12 + count))
            expected = bits_of(caches, pages, (slot,))
            connector.load([KvTransfer(transfer_id, keys("a", count), target, 4)])
            assert self.wait(connector, transfer_id) == {transfer_id: None}
            assert bits_of(caches, target, (4,)) == expected, f"the first {count} pages and their state"

    def test_what_was_saved_is_a_copy(self, connector: KvConnector, caches: KvCaches) -> None:
        """Pages are used again at once; a later load still gives what was saved."""
        self.save(connector, KvTransfer(1, keys("a", 1), (3,), 1))
        saved = bits_of(caches, (3,), (1,))
        for tensor in (*caches.pages.values(), *caches.slots.values()):
            tensor.zero_()
        connector.load([KvTransfer(2, keys("a", 1), (3,), 1)])
        assert self.wait(connector, 2) == {2: None}
        assert bits_of(caches, (3,), (1,)) == saved

    def test_a_load_of_what_is_not_there_fails_alone(self, connector: KvConnector, caches: KvCaches) -> None:
        """With a reason, while others succeed: the core then computes the prefix."""
        self.save(connector, KvTransfer(1, keys("a", 1), (3,), 1))
        connector.load([KvTransfer(2, keys("gone", 2), (8, 9), 2), KvTransfer(3, keys("a", 1), (10,), 3)])
        results = self.wait(connector, 2, 3)
        assert results[3] is None and results[2], "a load that fails says why"
        assert bits_of(caches, (10,), (3,)) == bits_of(caches, (3,), (1,))

    def test_many_transfers_are_each_reported_once(self, connector: KvConnector, caches: KvCaches) -> None:
        """Saved together, found together, loaded in another order."""
        names = [f"request-{i}" for i in range(5)]
        sources = [((2 * i + 1, 2 * i + 2), (i,)) for i in range(5)]
        targets = [((2 * i + 11, 2 * i + 12), (4 - i,)) for i in range(5)]
        connector.save([KvTransfer(i, keys(n, 2), sources[i][0], i) for i, n in enumerate(names)])
        assert self.wait(connector, *range(5)) == dict.fromkeys(range(5))
        assert list(connector.find([keys(n, 2) for n in names])) == [2] * 5
        expected = [bits_of(caches, *source) for source in sources]
        connector.load([KvTransfer(10 + i, keys(names[i], 2), targets[i][0], 4 - i) for i in (3, 0, 4, 1, 2)])
        assert self.wait(connector, *range(10, 15)) == dict.fromkeys(range(10, 15))
        assert [bits_of(caches, *target) for target in targets] == expected

    def test_it_may_be_closed_with_transfers_under_way(self, component: KvConnector, caches: KvCaches) -> None:
        """As when the engine stops in the middle of a step."""
        component.attach(caches)
        component.save([KvTransfer(1, keys("a", 3), (1, 2, 3), 1)])
        component.close()
