"""The core's own components run the suites that it asks of others."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from deepinfer_core.hookspecs import HOOK_NAMES, HookSpecs, hookimpl
from deepinfer_core.testing import HooksSuite, ModelSuite, SamplerSuite
from deepinfer_core.testing.toy import TOY_CONFIG, ToyArchitecture


class Observer:
    """Implements every hook."""


for _name in HOOK_NAMES:
    _spec = vars(HookSpecs)[_name]
    setattr(Observer, _name, hookimpl(FunctionType(_spec.__code__, _spec.__globals__, _name)))


class TestDefaultSampler(SamplerSuite):
    plugin = "core"


class TestToyModel(ModelSuite):
    """The model that suites of other seams run."""

    config = TOY_CONFIG

    @pytest.fixture
    def component(self) -> Any:
        return ToyArchitecture()


class TestObserver(HooksSuite):
    """An observer of everything."""

    @pytest.fixture
    def component(self) -> Any:
        return Observer()
