"""The guard raises where the host would wait for a device, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.testing.synchronisation import SynchronisationError, SynchronisationGuard

T = torch.arange(6)
ARRAY = np.arange(6)
WAITING: dict[str, Callable[[], object]] = {
    "item": lambda: T[0].item(),
    "int": lambda: int(T.max()),
    "bool": lambda: bool((T > 2).any()),
    "index": lambda: list(range(6))[T[1]],
    "slice": lambda: T[: T[2]],
    "tolist": lambda: T.tolist(),
    "numpy": lambda: T.numpy(),
    "cpu": lambda: T.cpu(),
    "nonzero": lambda: T.nonzero(),
    "where": lambda: torch.where(T > 2),
    "mask": lambda: T[T > 2],
    "assignment by mask": lambda: T.clone().__setitem__(T > 2, 0),
    "masked_select": lambda: T.masked_select(T > 2),
    "unique": lambda: T.unique(),
    "bincount": lambda: T.bincount(),
    "repeat_interleave": lambda: T.repeat_interleave(T),
    "equal": lambda: torch.equal(T, T),
    "tensor": lambda: torch.tensor([1, 2]),
    "as_tensor": lambda: torch.as_tensor([1, 2]),
    "from_numpy": lambda: torch.from_numpy(ARRAY),
}
QUEUED: dict[str, Callable[[], object]] = {
    "arithmetic": lambda: (T + 1) % 2 == 0,
    "index": lambda: T[T],
    "assignment": lambda: T.clone().__setitem__(T, T),
    "choice": lambda: torch.where(T > 2, T, -1),
    "masked_fill": lambda: T.masked_fill(T > 2, 0),
    "shape": lambda: T.new_zeros(len(T), T.shape[0]),
    "sort": lambda: T.argsort(dim=-1, stable=True),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", WAITING)
def test_the_guard_raises_where_the_host_would_wait(name: str, inference: bool) -> None:
    with torch.inference_mode(inference), SynchronisationGuard(), pytest.raises(SynchronisationError):
        WAITING[name]()
    with torch.inference_mode(inference):
        WAITING[name]()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", QUEUED)
def test_the_guard_lets_everything_else_pass(name: str, inference: bool) -> None:
    with torch.inference_mode(inference), SynchronisationGuard():
        QUEUED[name]()


def test_ops_run_as_a_device_runs_them() -> None:
    class Namespace:
        @staticmethod
        def largest(x: Tensor) -> int:
            return int(x.max())

    guard = SynchronisationGuard()
    with guard:
        assert guard.kernels(Namespace).largest(T) == 5
        with pytest.raises(SynchronisationError, match="makes the host wait"):
            Namespace.largest(T)
