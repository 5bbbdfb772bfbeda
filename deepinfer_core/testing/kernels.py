"""Conformance of ``attention`` and ``moe`` components, and what the suite of backends shares with it.

The oracle is the CPU backend's ops, which say themselves how each op may be called (``examples``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.errors import DeepInferError
from deepinfer_core.interfaces.attention import Attention
from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.interfaces.moe import Moe
from deepinfer_core.testing.suite import Suite, default_backend
from deepinfer_core.worker.kernels import check_overrides

#: A call of an op, as ``deepinfer_kernels.examples.Example`` describes it.
Example = Any
Op = Callable[..., Any]


def cpu_backend() -> Backend:
    """The installed CPU backend; skips the test where there is none."""
    try:
        return default_backend()[1]
    except DeepInferError as error:
        pytest.skip(f"the CPU backend is what results are compared with, and it is not installed: {error}")


def moved(value: Any, device: torch.device) -> Any:
    """An argument on a device: tensors and weights move, everything else stays. Always a copy."""
    if isinstance(value, Tensor):
        return value.clone() if value.device == device else value.to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: moved(getattr(value, field.name), device) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)
    return value


def results(op: Op, example: Example, device: torch.device, rows: Tensor | None = None) -> list[Tensor]:
    """What the call gives, on the host: the result's tensors, or what it wrote. ``rows``: these rows only."""
    args = list(example.args)
    if rows is not None:
        for index in example.by_row:
            args[index] = args[index][rows].contiguous()
    args = [moved(arg, device) for arg in args]
    found = op(*args)
    if example.writes is not None:
        found = args[example.writes]
    parts = found if isinstance(found, tuple) else (found,)
    return [part.cpu() for part in parts if part is not None]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether two results are the same, NaN and the sign of zero included."""
    return len(one) == len(other) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


def check_against(found: list[Tensor], expected: list[Tensor], tolerance: float, what: str) -> None:
    """Fail unless kinds are equal, choices equal, and numbers within ``tolerance`` of a row's largest value."""
    kinds = [[(part.dtype, tuple(part.shape)) for part in side] for side in (found, expected)]
    assert kinds[0] == kinds[1], f"{what}: dtypes and shapes, found and expected"
    for one, other in zip(found, expected, strict=True):
        if not tolerance or not one.is_floating_point():
            assert same_bits([one], [other]), f"{what} must give the same bits"
        elif one.numel():
            size = other.double().abs().flatten(1).amax(1).clamp_min(1e-30)
            error = float(((one.double() - other.double()).abs().flatten(1).amax(1) / size).max())
            assert error <= tolerance, f"{what} differs by {error:.2e} of the row's largest value, over {tolerance:.2e}"


def check_rows(op: Op, example: Example, device: torch.device) -> None:
    """Fail unless each row is the same bits alone, in another place, and without rows there are no rows."""
    whole = results(op, example, device)
    count = len(whole[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    permuted = results(op, example, device, order)
    assert same_bits(permuted, [part[order] for part in whole]), f"{example.op} with its rows in another order"
    for row in (0, count - 1):
        alone = results(op, example, device, torch.tensor([row]))
        assert same_bits(alone, [part[row : row + 1] for part in whole]), f"row {row} of {example.op} alone"
    none = results(op, example, device, torch.tensor([], dtype=torch.int64))
    assert all(len(part) == 0 for part in none), f"{example.op} without rows"


class KernelsSuite(Suite):
    """What attention and moe components share."""

    def make_backend(self) -> Backend:
        """The backend whose ops are replaced: the CPU's. Override it for a component of another device."""
        return cpu_backend()

    @pytest.fixture
    def backend(self) -> Backend:
        """:meth:`make_backend`."""
        return self.make_backend()

    @pytest.fixture
    def oracle(self) -> Any:
        """The ops that results are compared with."""
        return cpu_backend().kernels

    @pytest.fixture
    def overrides(self, component: Attention | Moe, backend: Backend) -> Mapping[str, Op]:
        """What the component replaces."""
        found = component.override(backend.kernels, backend.device)
        return check_overrides(found, self.seam, f"component {component!r}")

    def cases(self, overrides: Mapping[str, Op], oracle: Any) -> list[tuple[Op, Example]]:
        """Calls of the replaced ops."""
        found = [(overrides[e.op], e) for seed in (0, 1) for e in oracle.examples(seed) if e.op in overrides]
        assert {e.op for _, e in found} == set(overrides), "every replaced op has an example"
        return found

    def test_something_is_replaced(self, overrides: Mapping[str, Op]) -> None:
        """Ops of the seam's family only, each by something that can be called."""
        assert overrides, "override must return at least one op"

    def test_results_are_those_of_the_cpu_backend(
        self, overrides: Mapping[str, Op], oracle: Any, backend: Backend
    ) -> None:
        """Within what the op allows."""
        host = torch.device("cpu")
        for op, example in self.cases(overrides, oracle):
            expected = results(getattr(oracle, example.op), example, host)
            check_against(results(op, example, backend.device), expected, example.tolerance, example.op)

    def test_rows_are_independent(self, overrides: Mapping[str, Op], oracle: Any, backend: Backend) -> None:
        """Bit for bit, alone and in any place."""
        cases = [(op, example) for op, example in self.cases(overrides, oracle) if example.by_row]
        if not cases:
            pytest.skip(f"the rows of {', '.join(overrides)} belong together")
        for op, example in cases:
            check_rows(op, example, backend.device)

    def test_a_call_can_be_repeated(self, overrides: Mapping[str, Op], oracle: Any, backend: Backend) -> None:
        """Same arguments, same bits, whatever was called in between."""
        cases = self.cases(overrides, oracle)
        first = [results(op, example, backend.device) for op, example in cases]
        again = [results(op, example, backend.device) for op, example in reversed(cases)][::-1]
        for (_, example), one, other in zip(cases, first, again, strict=True):
            assert same_bits(one, other), f"{example.op} called twice"

    def test_arguments_are_left_unchanged(self, overrides: Mapping[str, Op], oracle: Any, backend: Backend) -> None:
        """But for what the op is there to write."""
        for op, example in self.cases(overrides, oracle):
            args = [moved(arg, backend.device) for arg in example.args]
            op(*args)
            for index, (before, after) in enumerate(zip(example.args, args, strict=True)):
                if isinstance(before, Tensor) and index != example.writes:
                    assert same_bits([before], [after.cpu()]), f"{example.op} changed its argument {index}"


class AttentionSuite(KernelsSuite):
    """Replaced attention ops give the CPU backend's results, row by row."""

    seam = "attention"


class MoeSuite(KernelsSuite):
    """Replaced mixture-of-experts ops give the CPU backend's results, row by row."""

    seam = "moe"
