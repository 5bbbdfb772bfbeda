"""Finds where the host would wait for a device, without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
#: What PyTorch itself says of an operation whose result, or the shape of it, is known only when it has run.
_WAITING_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
#: Operations made of such ones, and copies of host memory.
_WAITING = frozenset({_ATEN.is_nonzero, _ATEN.where.default, _ATEN.repeat_interleave.self_Tensor, _ATEN.lift_fresh})
#: Tagged, or not, but waiting only where a mask is among the indices.
_INDEXING = frozenset({_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_})
#: Methods that read memory without an operation.
_READING = frozenset({Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__})


class SynchronisationError(AssertionError):
    """The host would have waited for the device."""


class SynchronisationGuard:
    """A context in which the calling thread may queue work for a device, and not wait for it.

    Reading a tensor's values, shapes that depend on them, and copies of host memory raise SynchronisationError, on
    whatever device the tensors are, the CPU included. Within the ops of :meth:`kernels` everything is allowed: a
    device runs those by itself.
    """

    def __init__(self) -> None:
        self._entered = ExitStack()
        self._within_an_op = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(_Operations(self))
            stack.enter_context(_Methods(self))
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._entered.close()

    def kernels(self, namespace: Any) -> Any:
        """The namespace of ops, for a model to be built with."""
        return _DeviceKernels(namespace, self)

    @contextmanager
    def running_an_op(self) -> Iterator[None]:
        """Allow everything."""
        before, self._within_an_op = self._within_an_op, True
        try:
            yield
        finally:
            self._within_an_op = before

    def check(self, waits: bool, what: object) -> None:
        """Raise SynchronisationError if the host waits in ``what``."""
        if waits and not self._within_an_op:
            raise SynchronisationError(f"{what} makes the host wait for the device")


class _Operations(TorchDispatchMode):
    def __init__(self, guard: SynchronisationGuard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._guard.check(_waits(func, args), func)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, guard: SynchronisationGuard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._guard.check(func in _READING, getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))


class _DeviceKernels:
    def __init__(self, namespace: Any, guard: SynchronisationGuard) -> None:
        self._namespace, self._guard = namespace, guard

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_"):
            raise AttributeError(op)
        function = getattr(self._namespace, op)

        def run(*args: Any, **kwargs: Any) -> Any:
            with self._guard.running_an_op():
                return function(*args, **kwargs)

        return run


def _waits(func: Any, args: Any) -> bool:
    if func.overloadpacket in _INDEXING:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return func in _WAITING or func.overloadpacket in _WAITING or not _WAITING_TAGS.isdisjoint(func.tags)
