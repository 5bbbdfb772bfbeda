"""The conformance kit: a pytest suite per seam, to be subclassed in a plugin's own tests.

::

    from deepinfer_core.testing import SamplerSuite

    class TestMySampler(SamplerSuite):
        plugin = "my-sampler"          # an installed plugin; or override the fixture ``component``

``deepinfer plugins check`` runs the same suites on an installed or a local plugin. Needs pytest:
``pip install deepinfer-core[testing]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

try:
    import pytest
except ImportError as error:
    raise ImportError("deepinfer_core.testing needs pytest: pip install 'deepinfer-core[testing]'") from error

if TYPE_CHECKING:
    from deepinfer_core.testing.backend import BackendSuite
    from deepinfer_core.testing.checkpoint import CheckpointSuite
    from deepinfer_core.testing.command import CommandSuite
    from deepinfer_core.testing.eplb_policy import EplbPolicySuite
    from deepinfer_core.testing.grammar import GrammarSuite
    from deepinfer_core.testing.hooks import HooksSuite
    from deepinfer_core.testing.kernels import AttentionSuite, MoeSuite
    from deepinfer_core.testing.kv_connector import KvConnectorSuite
    from deepinfer_core.testing.logits_processor import LogitsProcessorSuite
    from deepinfer_core.testing.model import ModelSuite
    from deepinfer_core.testing.multimodal import MultimodalSuite
    from deepinfer_core.testing.sampler import SamplerSuite
    from deepinfer_core.testing.scheduler_policy import SchedulerPolicySuite
    from deepinfer_core.testing.speculator import SpeculatorSuite
    from deepinfer_core.testing.suite import Suite

#: Module and class of each seam's suite.
SUITES: Final = {
    "backend": ("backend", "BackendSuite"),
    "model": ("model", "ModelSuite"),
    "checkpoint": ("checkpoint", "CheckpointSuite"),
    "attention": ("kernels", "AttentionSuite"),
    "moe": ("kernels", "MoeSuite"),
    "speculator": ("speculator", "SpeculatorSuite"),
    "sampler": ("sampler", "SamplerSuite"),
    "logits_processor": ("logits_processor", "LogitsProcessorSuite"),
    "grammar": ("grammar", "GrammarSuite"),
    "scheduler_policy": ("scheduler_policy", "SchedulerPolicySuite"),
    "eplb_policy": ("eplb_policy", "EplbPolicySuite"),
    "kv_connector": ("kv_connector", "KvConnectorSuite"),
    "multimodal": ("multimodal", "MultimodalSuite"),
    "hooks": ("hooks", "HooksSuite"),
    "command": ("command", "CommandSuite"),
}

#: Modules with asserts. What a failed one shows is most of what a plugin's author gets to see.
ASSERTING: Final = (*(f"{__name__}.{module}" for module, _ in SUITES.values()), f"{__name__}.suite")
pytest.register_assert_rewrite(*ASSERTING)

_HOME = {"Suite": "suite", **{name: module for module, name in SUITES.values()}}

__all__ = [
    "AttentionSuite",
    "BackendSuite",
    "CheckpointSuite",
    "CommandSuite",
    "EplbPolicySuite",
    "GrammarSuite",
    "HooksSuite",
    "KvConnectorSuite",
    "LogitsProcessorSuite",
    "ModelSuite",
    "MoeSuite",
    "MultimodalSuite",
    "SamplerSuite",
    "SchedulerPolicySuite",
    "SpeculatorSuite",
    "Suite",
    "suite_for",
]


def suite_for(seam: str) -> type[Suite]:
    """The suite of a seam. Raises KeyError for a seam that has none."""
    module, name = SUITES[seam]
    suite: type[Suite] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return suite


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
