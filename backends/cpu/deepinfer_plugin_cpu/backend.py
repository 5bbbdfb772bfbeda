"""The CPU backend: the host's processor and memory, through the kernel family ``cpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_plugin_cpu.memory import available_and_total

if TYPE_CHECKING:
    import torch

    from deepinfer_kernels.ops import KernelFamily


class CpuBackend:
    """Always available; the backend that results of all others are checked against."""

    name = "cpu"

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        import torch

        return torch.device("cpu")

    @property
    def kernels(self) -> KernelFamily:
        """The kernel family ``cpu``."""
        from deepinfer_kernels import ops

        return ops.family("cpu")

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of host memory for this process, container limits included."""
        return available_and_total()

    def configure(self, num_threads: int | None) -> None:
        """Set the number of torch's threads; None is one per CPU this process may use.

        They are the process's: of several engines, the last one made decides. The kernels have each engine's pool.
        """
        if num_threads is not None and num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        import torch

        from deepinfer_kernels import cpu

        torch.set_num_threads(num_threads or cpu.usable_cpus())

    def new_host_pool(self, num_threads: int | None) -> object:
        """Threads that the kernels run on where they are bound, in a PyCapsule; None is one per usable CPU."""
        from deepinfer_kernels import cpu

        return cpu.new_host_pool(num_threads)
