"""The ``backend`` seam: a device and what runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Backend(Protocol):
    """A device. Created once per worker, before the model is loaded.

    What PyTorch itself must be able to do there: allocate, copy from and to the host, make views, index with tensors
    of the device, and the elementwise arithmetic that models do between ops. The core and the models make no tensor
    elsewhere, except what is copied from or to the host, and weights come through host memory one at a time.
    """

    @property
    def name(self) -> str:
        """Name shown to users."""

    @property
    def kernels(self) -> Any:
        """The namespace of ops that run on this device; handed to the model as it is.

        An op is found by its name when it is first used, and gets tensors of this device, also within weights.
        """

    @property
    def device(self) -> torch.device:
        """Where tensors live."""

    def configure(self, num_threads: int | None) -> None:
        """Apply process-wide settings. ``num_threads`` None leaves the choice to the backend."""

    def memory_info(self) -> tuple[int, int]:
        """``(free, total)`` bytes available to this process, containers' limits included."""


@runtime_checkable
class HostPoolBackend(Backend, Protocol):
    """A backend whose ops run on threads of the host, and which lets an engine have its own.

    The engine's sampler runs on the same threads. With any other backend it has some that the core makes.
    """

    def new_host_pool(self, num_threads: int | None) -> object:
        """Threads for one engine, ``num_threads`` with the one that calls the ops; None leaves it to the backend.

        Returns a PyCapsule ``deepinfer.host_pool``, with what ``kernels/csrc/pool/host_pool.h`` describes;
        ``deepinfer_kernels.cpu.new_host_pool`` makes one. The backend keeps nothing: the threads live as long as the
        capsule, which is the engine's to close.
        """
