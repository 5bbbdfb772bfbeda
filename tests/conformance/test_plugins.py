"""The plugins of this repository run the suites of their seams."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.testing import BackendSuite
from deepinfer_kernels import ops


class TestCpuBackend(BackendSuite):
    """Against the torch references, which are what the CPU's ops promise to compute."""

    plugin = "cpu"

    @pytest.fixture
    def oracle(self) -> Any:
        return ops.family("reference")
