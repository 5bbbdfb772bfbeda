"""DeepInfer core: step loop, native scheduler, seams and plugin manager.

The public names below are imported when first used, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer_core.arg_utils import EngineArgs
    from deepinfer_core.async_llm import AsyncLLM
    from deepinfer_core.hookspecs import hookimpl
    from deepinfer_core.interfaces.structured_output import StructuredOutput
    from deepinfer_core.llm import LLM
    from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput
    from deepinfer_core.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutput",
    "hookimpl",
]

_HOME = {
    "LLM": "llm",
    "AsyncLLM": "async_llm",
    "CompletionOutput": "outputs",
    "EngineArgs": "arg_utils",
    "Logprob": "outputs",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "StructuredOutput": "interfaces.structured_output",
    "hookimpl": "hookspecs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
