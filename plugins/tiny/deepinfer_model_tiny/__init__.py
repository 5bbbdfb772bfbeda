"""The checkpoint ``tiny``: its files are in the folder ``checkpoint`` of this package, its card among them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from deepinfer_core.interfaces.checkpoint import CheckpointFiles


class Tiny:
    """The component of the ``checkpoint`` seam."""

    def locate(self, name: str) -> CheckpointFiles:
        """The package's own files, whichever of its names was asked for."""
        folder = Path(str(resources.files(__name__))) / "checkpoint"
        return CheckpointFiles(path=folder, license="Apache-2.0", card=folder / "README.md")
