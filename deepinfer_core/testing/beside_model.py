"""What the suites of components that work beside a model share."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.interfaces.model import Architecture
from deepinfer_core.testing.checkpoints import write_toy_checkpoint
from deepinfer_core.testing.kernels import cpu_backend
from deepinfer_core.testing.suite import Suite
from deepinfer_core.testing.toy import ToyArchitecture


class BesideModelSuite(Suite):
    """A toy model on the CPU; a component of a certain architecture overrides ``architecture`` and ``checkpoint``."""

    @pytest.fixture
    def architecture(self) -> Architecture:
        """The model's component."""
        return ToyArchitecture()

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        """The folder of a checkpoint of it, with what the component needs."""
        return write_toy_checkpoint(tmp_path / "checkpoint")

    @pytest.fixture
    def backend(self) -> Backend:
        """Where both run."""
        return cpu_backend()
