"""Checkpoint tensors into a model's parameters: checked from the headers first, then read in place.

The model is built on the meta device, so nothing is allocated before :func:`load_weights` has seen that every
tensor fits; each tensor is then read straight into its parameter's memory, so that the peak is about the
parameters themselves. A device's memory is filled through the host's, and a floating-point type that is not the
parameter's is converted, one tensor at a time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.errors import CheckpointError
from deepinfer_core.interfaces.weights import WeightSpec
from deepinfer_core.model_loader.checkpoint import CheckpointIndex, TensorInfo, shorten
from deepinfer_core.model_loader.reading import read_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

logger = logging.getLogger(__name__)

_PLAIN_DTYPES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "uint8": "U8", "int8": "I8",
    "int32": "I32", "int64": "I64", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
#: Types that are converted, rounding to nearest, where a spec accepts one and its parameter has another.
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

#: Why a checkpoint tensor is deliberately not loaded, or None when it should have been.
Ignore = Callable[[str], "str | None"]


@attrs.frozen
class _Fitted:
    """A spec together with the tensor that fills it."""

    spec: WeightSpec
    tensor: TensorInfo


def load_weights(
    module: nn.Module,
    index: CheckpointIndex,
    specs: Iterable[WeightSpec],
    *,
    ignore: Ignore = lambda name: None,
    device: str | torch.device = "cpu",
    use_tqdm: bool = True,
    watchdog_seconds: float = 1800.0,
) -> None:
    """Check everything, allocate ``module``'s meta tensors on ``device``, and fill them.

    Raises CheckpointError before anything is allocated, with every tensor that is missing, unexpected, of the
    wrong shape or dtype, and every parameter part that no tensor fills; and later when reading fails or makes
    no progress for ``watchdog_seconds``.
    """
    targets = _targets(module)
    fitted = _check(index, targets, list(specs), ignore)
    materialize(module, device)
    targets = {name: tensor for name, tensor in _named(module) if name in targets}
    reads = [(e.tensor, partial(_memory_of, _part(targets, e.spec), e.tensor.dtype)) for e in fitted]
    read_all(reads, use_tqdm=use_tqdm, watchdog_seconds=watchdog_seconds)


def materialize(module: nn.Module, device: str | torch.device) -> None:
    """Replace every meta parameter and buffer of ``module`` by uninitialised memory; shared ones stay shared.

    The replacements are new tensors with the old ones' attributes; views of the old ones have to be made afterwards.
    """
    import torch

    # Old tensors are kept beside the new ones: a freed one could hand its id to another.
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def real(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            data = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            new = torch.nn.Parameter(data, requires_grad=False) if is_parameter else data
            new.__dict__.update(tensor.__dict__)
            made[id(tensor)] = (tensor, new)
        return made[id(tensor)][1]

    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in list(table.items()):
                if tensor is not None and tensor.is_meta:
                    table[name] = real(tensor)  # type: ignore[assignment]


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _targets(module: nn.Module) -> dict[str, Tensor]:
    """What the checkpoint has to fill: everything still on the meta device."""
    return {name: tensor for name, tensor in _named(module) if tensor.is_meta}


def _part(targets: Mapping[str, Tensor], spec: WeightSpec) -> Tensor:
    part = targets[spec.parameter][spec.index] if spec.index else targets[spec.parameter]
    if not part.is_contiguous():
        raise ValueError(f"{spec.parameter}{list(spec.index)} for {spec.name} is not contiguous memory")
    return part


def _check(
    index: CheckpointIndex, targets: Mapping[str, Tensor], specs: list[WeightSpec], ignore: Ignore
) -> list[_Fitted]:
    """Pair every spec with its tensor, in file order, or raise one error with every problem."""
    problems = _uncovered(targets, specs)
    fitted = []
    for spec in specs:
        if spec.parameter not in targets:
            continue
        part, tensor = _part(targets, spec), index.get(spec.name)
        accepted = spec.dtypes or (_PLAIN_DTYPES[str(part.dtype).removeprefix("torch.")],)
        if tensor is None:
            problems.append(f"missing: {spec.name} {list(part.shape)} {' or '.join(accepted)}")
            continue
        if tensor.shape != tuple(part.shape):
            problems.append(f"wrong shape: {spec.name} is {list(tensor.shape)}, expected {list(part.shape)}")
        if tensor.dtype not in accepted:
            problems.append(f"wrong dtype: {spec.name} is {tensor.dtype}, expected {' or '.join(accepted)}")
        fitted.append(_Fitted(spec, tensor))
    problems += _unexpected(index, {spec.name for spec in specs}, ignore)
    if problems:
        summary = shorten(problems, limit=100, separator="\n  ")
        count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        raise CheckpointError(f"{index.path} does not fit the model ({count}):\n  {summary}")
    return sorted(fitted, key=lambda entry: (str(entry.tensor.shard), entry.tensor.begin))


def _uncovered(targets: Mapping[str, Tensor], specs: list[WeightSpec]) -> list[str]:
    """Parameters that the weight map fills not at all, in part, or twice, and parts it invents."""
    filled: Counter[str] = Counter()
    problems = []
    for spec in specs:
        if spec.parameter in targets:
            filled[spec.parameter] += _part(targets, spec).numel()
        else:
            problems.append(f"weight map error: {spec.name} is for {spec.parameter}, which the model lacks")
    for part, count in Counter(f"{spec.parameter}{list(spec.index)}" for spec in specs).items():
        if count > 1:
            problems.append(f"weight map error: {part} is filled {count} times")
    for name, tensor in targets.items():
        if filled[name] != tensor.numel():
            problems.append(f"weight map error: {filled[name]} of {tensor.numel()} values of {name} are filled")
    return problems


def _unexpected(index: CheckpointIndex, wanted: set[str], ignore: Ignore) -> list[str]:
    """Tensors nobody wants and nobody ignores; logs how many are ignored and why."""
    reasons: Counter[str] = Counter()
    problems = []
    for name, tensor in index.items():
        if name in wanted:
            continue
        reason = ignore(name)
        if reason is None:
            problems.append(f"unexpected: {name} {list(tensor.shape)} {tensor.dtype}")
        else:
            reasons[reason] += 1
    for reason, count in reasons.items():
        logger.info("%d checkpoint tensors are not loaded: %s", count, reason)
    return problems


@contextmanager
def _memory_of(part: Tensor, stored: str) -> Iterator[memoryview[Any]]:
    """Host memory for the bytes of a contiguous tensor, ``stored`` as the checkpoint has them: the tensor's own, or
    what is copied into it at the end, to its device and, between floating-point types, to its dtype."""
    import torch

    is_float = part.dtype.is_floating_point and stored in _FLOATS
    dtype = getattr(torch, _FLOATS[stored]) if is_float else part.dtype
    in_place = part.device.type == "cpu" and part.dtype == dtype
    host = part.detach() if in_place else torch.empty(part.shape, dtype=dtype)
    yield memoryview(host.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    if not in_place:
        part.detach().copy_(host)
