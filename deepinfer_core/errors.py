"""Every error DeepInfer raises on purpose, and the wording helpers they share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DeepInferError(Exception):
    """Base of all errors raised on purpose. The message names the value, the rule and the remedy."""


class ConfigError(DeepInferError, ValueError):
    """A configuration value, flag or model config that is wrong or contradicts another one."""


class CheckpointError(DeepInferError):
    """A checkpoint that cannot be loaded: missing, damaged, or not the tensors the model needs."""


class RequestError(DeepInferError, ValueError):
    """A request refused before it reached the engine. Other requests are unaffected."""


class GenerationError(DeepInferError):
    """A request that was accepted and failed while it ran. Other requests are unaffected."""


class PluginError(DeepInferError):
    """A plugin that is unknown, broken, or incompatible. The message names it and how to leave it out."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to ``name``, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""
