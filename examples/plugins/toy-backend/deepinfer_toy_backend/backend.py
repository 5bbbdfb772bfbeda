"""The backend: where tensors live, how much fits there, and the ops that run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from deepinfer_plugin_cpu.backend import CpuBackend
from deepinfer_toy_backend.device import device, run_on_host


class ToyKernels:
    """The device's ops: here the CPU's on its memory, so that results are the CPU's bit for bit.

    A real backend has functions of its own; those that it lacks can come from another family in this way.
    ``calls``: how often each op has run.
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        self.calls: Counter[str] = Counter()

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_"):
            raise AttributeError(op)
        function = getattr(self._host, op)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[op] += 1
            return run_on_host(function, args, kwargs)

        self.__dict__[op] = call  # found without this method from now on
        return call


class ToyBackend:
    """Implements the ``backend`` seam."""

    name = "toy"

    def __init__(self) -> None:
        self._host = CpuBackend()
        self.kernels = ToyKernels(self._host.kernels)

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        return device()

    def configure(self, num_threads: int | None) -> None:
        """The ops run on the CPU."""
        self._host.configure(num_threads)

    def new_host_pool(self, num_threads: int | None) -> object:
        """Threads of the ops."""
        return self._host.new_host_pool(num_threads)

    def memory_info(self) -> tuple[int, int]:
        """``(free, total)`` bytes of the device, which are the host's."""
        return self._host.memory_info()
