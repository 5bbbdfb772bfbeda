"""Structured outputs: what a request asks for, and how the engine holds its output to it."""

from deepinfer_core.structured.spec import KINDS, StructuredOutput

__all__ = ["KINDS", "StructuredOutput"]
