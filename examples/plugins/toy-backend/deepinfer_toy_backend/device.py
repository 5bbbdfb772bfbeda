"""PyTorch's private-use device under the name ``toy``, without a line of C++.

Its memory is host memory that nobody reaches in other ways than copies: a tensor on it has no data pointer and no
NumPy array, and no operation mixes it with a host tensor. So whatever runs here keeps its tensors on the right device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "toy"
_COPY = torch.ops.aten.copy_.default


class ToyTensor(Tensor):
    """A tensor on the device. ``host``: the CPU tensor that stands for its memory; views share it."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> ToyTensor:
        strides, offset = host.stride(), host.storage_offset()
        with torch.inference_mode(False):  # views of what was made outside of inference mode have to be so too
            made: ToyTensor = Tensor._make_wrapper_subclass(
                cls, host.shape, strides=strides, storage_offset=offset, dtype=host.dtype, device=torch.device(NAME, 0)
            )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub is of a plain function
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        result = func.decompose(*args, **kwargs)  # what is made of other operations comes back as those
        if result is not NotImplemented:
            return result
        target = kwargs.get("device")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
            if torch.device(target).type != NAME:
                return func(*(arg.host if isinstance(arg, ToyTensor) else arg for arg in args), **kwargs)
        return run_on_host(func, args, kwargs, is_copy=func is _COPY)

    def tolist(self) -> Any:
        """The values, copied to the host."""
        return self.host.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.host!r} on {self.device}"


def run_on_host(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, is_copy: bool = False
) -> Any:
    """Call ``function`` on the memory of the tensors among its arguments; what it returns is on the device.

    Raises RuntimeError for a host tensor with dimensions among them, other than in a copy.
    """
    given: dict[int, Tensor] = {}

    def enter(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, ToyTensor) and tensor.dim() and not is_copy:
            raise RuntimeError(f"{function} needs its tensors on one device, got {NAME} and {tensor.device}")
        host = tensor.host if isinstance(tensor, ToyTensor) else tensor
        given[id(host)] = tensor
        return host

    def leave(tensor: Tensor) -> Tensor:
        # What was changed in place is the tensor that came.
        return given[id(tensor)] if id(tensor) in given else ToyTensor(tensor)

    args, kwargs = map_tensors(enter, list(args)), map_tensors(enter, kwargs)
    return map_tensors(leave, function(*args, **kwargs))


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``value`` with every tensor in it, also within lists, tuples, dicts and dataclasses, replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(function, item) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **map_tensors(function, parts))
    return value


@cache
def device() -> torch.device:
    """The device; the first call makes it known to PyTorch, whose private-use slot takes one name per process."""
    _setup_privateuseone_for_python_backend(NAME)
    # What PyTorch calls without asking a tensor's class: allocations, and the copy within torch.tensor.
    _library().impl("empty.memory_format", partial(_allocate, torch.empty), "PrivateUse1")
    _library().impl("empty_strided", partial(_allocate, torch.empty_strided), "PrivateUse1")
    _library().impl("_copy_from", _copy_from, "PrivateUse1")
    return torch.device(NAME, 0)


@cache
def _library() -> torch.library.Library:
    # Its registrations last as long as it does.
    return torch.library.Library("aten", "IMPL")


def _allocate(function: Callable[..., Tensor], *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return ToyTensor(function(*args, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    hosts = [tensor.host if isinstance(tensor, ToyTensor) else tensor for tensor in (source, target)]
    hosts[1].copy_(hosts[0])
    return target
