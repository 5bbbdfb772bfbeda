"""Conformance of ``checkpoint`` components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from deepinfer_core.interfaces.checkpoint import Checkpoint, CheckpointFiles
from deepinfer_core.model_loader import CheckpointIndex, load_hf_config
from deepinfer_core.plugins import PluginManager
from deepinfer_core.testing.suite import Suite


class CheckpointSuite(Suite):
    """The files of every model that the manifest lists are there and can be read."""

    seam = "checkpoint"
    models: ClassVar[Sequence[str]] = ()
    """Names of the models, where the component is not given by its plugin's name."""

    @pytest.fixture
    def files(self, component: Checkpoint) -> dict[str, CheckpointFiles]:
        """What the component says of each model."""
        names = list(self.models)
        if self.plugin is not None:
            rows = PluginManager([self.plugin], environ={}).checkpoints()
            names += [row.name for row in rows if row.plugin == self.plugin]
        assert names, "the manifest's capability 'models', or the attribute 'models', must name a model"
        return {name: component.locate(name) for name in names}

    def test_every_model_has_a_folder_with_a_config(self, files: dict[str, CheckpointFiles]) -> None:
        """In the published format, with an architecture."""
        for name, found in files.items():
            assert isinstance(found, CheckpointFiles), f"locate({name!r}) must return CheckpointFiles"
            assert load_hf_config(found.path).architecture, f"config.json of {name!r} names an architecture"

    def test_weights_are_there(self, files: dict[str, CheckpointFiles]) -> None:
        """Every shard, with a readable header."""
        for name, found in files.items():
            if not any(found.path.glob("*.safetensors")):
                pytest.skip(f"{name!r} has no safetensors in {found.path} yet")
            assert list(CheckpointIndex.open(found.path).items()), f"{name!r} has at least one tensor"

    def test_licence_and_card(self, files: dict[str, CheckpointFiles]) -> None:
        """A licence in words; a card that can be read, if there is one."""
        for name, found in files.items():
            assert found.license.strip(), f"{name!r} needs a licence"
            if found.card is not None:
                assert found.card.read_text(encoding="utf-8").strip(), f"the card of {name!r} is empty"

    def test_the_answer_does_not_change(self, component: Checkpoint, files: dict[str, CheckpointFiles]) -> None:
        """Asked twice, it says the same."""
        assert {name: component.locate(name) for name in files} == files

    def test_finding_files_needs_no_torch(self, files: dict[str, CheckpointFiles]) -> None:
        """``deepinfer inspect`` and ``deepinfer models`` must stay quick."""
        for name in files:
            self.run_without_torch(f"component.locate({name!r})")
