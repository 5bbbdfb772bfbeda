"""What a model says of the tensors that it needs from a checkpoint."""

from __future__ import annotations

import attrs


@attrs.frozen
class WeightSpec:
    """One checkpoint tensor and the part of a parameter it fills."""

    name: str
    """Checkpoint name without ``model.`` prefix."""
    parameter: str
    """Parameter or buffer name in the module."""
    index: tuple[int | slice, ...] = ()
    """Leading indices of a contiguous part, such as ``(expert,)`` of a stack; empty for the whole."""
    dtypes: tuple[str, ...] = ()
    """Accepted safetensors dtype names; empty means the parameter's own dtype."""
