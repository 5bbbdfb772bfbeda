"""The plugins of this repository run the suites of their seams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.testing import BackendSuite, GrammarSuite, ModelSuite, SpeculatorSuite
from deepinfer_kernels import ops
from deepinfer_plugin_deepseek.architecture import DeepseekV41

DATA = Path(__file__).parents[1] / "data"


class TestCpuBackend(BackendSuite):
    """Against the torch references, which are what the CPU's ops promise to compute."""

    plugin = "cpu"

    @pytest.fixture
    def oracle(self) -> Any:
        return ops.family("reference")


class TestDeepseek(ModelSuite):
    """A published checkpoint's format, with all kinds of layers."""

    plugin = "deepseek"

    @pytest.fixture
    def checkpoint(self) -> Path:
        return DATA / "v41-tiny-bf16"


class TestXGrammar(GrammarSuite):
    """Every kind of grammar."""

    plugin = "xgrammar"


class TestDFlash(SpeculatorSuite):
    """The drafter of a published checkpoint."""

    plugin = "dflash"

    @pytest.fixture
    def architecture(self) -> Any:
        return DeepseekV41()

    @pytest.fixture
    def checkpoint(self) -> Path:
        return DATA / "v41-tiny-bf16"
