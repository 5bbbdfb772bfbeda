"""The threads of an engine: the backend's where it has some, else the core's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core import _C
from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.backend import HostPoolBackend

if TYPE_CHECKING:
    from deepinfer_core.interfaces.backend import Backend


def new_host_pool(backend: Backend, num_threads: int | None) -> _C.HostPool:
    """A pool of ``num_threads`` threads, None: as many as the backend thinks best.

    Ops and samplers run on it while the thread that calls them is inside (``with``). Raises PluginError, naming the
    backend, for what is no pool.
    """
    if not isinstance(backend, HostPoolBackend):
        return _C.HostPool(num_threads)
    capsule = backend.new_host_pool(num_threads)
    try:
        return _C.HostPool.of(capsule)
    except ValueError as error:
        raise PluginError(
            f"backend {backend.name!r}: new_host_pool must return a PyCapsule 'deepinfer.host_pool', got {capsule!r}"
        ) from error
