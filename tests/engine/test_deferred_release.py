"""Deferred releases run at the next flush, each once, whatever the others do."""

from __future__ import annotations

import weakref
from functools import partial

import pytest

from deepinfer_core.engine.deferred_release import DeferredRelease


def test_releases_run_at_the_flush_in_order_and_once() -> None:
    done: list[int] = []
    deferred = DeferredRelease()
    for n in range(3):
        deferred.defer(partial(done.append, n))
    assert (done, len(deferred)) == ([], 3)
    deferred.flush()
    deferred.flush()
    assert (done, len(deferred)) == ([0, 1, 2], 0)


def test_what_a_release_defers_waits_for_the_next_flush() -> None:
    done: list[str] = []
    deferred = DeferredRelease()
    deferred.defer(lambda: deferred.defer(lambda: done.append("later")))
    deferred.flush()
    assert (done, len(deferred)) == ([], 1)
    deferred.flush()
    assert done == ["later"]


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 2}, {0, 1, 2}])
def test_a_failing_release_holds_up_no_other(failing: set[int]) -> None:
    done: list[int] = []
    deferred = DeferredRelease()

    def release(n: int) -> None:
        if n in failing:
            raise ValueError(n)
        done.append(n)

    for n in range(3):
        deferred.defer(partial(release, n))
    with pytest.raises((ValueError, ExceptionGroup)) as failure:
        deferred.flush()
    assert done == [n for n in range(3) if n not in failing]
    causes = failure.value.exceptions if isinstance(failure.value, ExceptionGroup) else [failure.value]
    assert {cause.args[0] for cause in causes} == failing
    deferred.flush()


def test_what_is_to_be_released_lives_until_the_flush_and_no_longer() -> None:
    class Resource:
        def close(self) -> None:
            pass

    resource = Resource()
    alive = weakref.ref(resource)
    deferred = DeferredRelease()
    deferred.defer(resource.close)
    del resource
    assert alive() is not None
    deferred.flush()
    assert alive() is None
