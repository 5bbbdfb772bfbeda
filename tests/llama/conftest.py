"""Random checkpoints for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def checkpoints(llama_checkpoints: ModuleType, tmp_path: Path) -> Any:
    """Makes random checkpoints of this test."""
    return llama_checkpoints.Checkpoints(tmp_path)
