"""What the name of an architecture decides and its ``config.json`` leaves unsaid. Pure data."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class Family:
    """One architecture.

    query_bias: whether query, key and value projections have biases and the output projection none; None: all four
    do as ``attention_bias`` says.
    uses_window, window_size, first_window_layer: defaults of ``use_sliding_window``, ``sliding_window`` and
    ``max_window_layers``.
    fixed: keys with few values that the architecture knows. Anything else would run and be wrong.
    """

    query_bias: bool | None = None
    uses_window: bool = False
    window_size: int | None = None
    first_window_layer: int = 0
    fixed: Mapping[str, tuple[object, ...]] = attrs.field(factory=dict)


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(fixed={"sliding_window": (None,), "use_sliding_window": (None, False)}),
    "MistralForCausalLM": Family(
        query_bias=False,
        uses_window=True,
        window_size=4096,
        fixed={"attention_bias": (None, False), "mlp_bias": (None, False)},
    ),
    "Qwen2ForCausalLM": Family(
        query_bias=True,
        window_size=4096,
        first_window_layer=28,
        fixed={"attention_bias": (None, True), "mlp_bias": (None, False), "use_mrope": (None, False)},
    ),
}
