"""The ``checkpoint`` seam: a package that brings a model's files, found by name.

A component of this seam is a :class:`Checkpoint`; its manifest lists the ``models`` (names that users type)
that it ships and, for listings that import nothing, their ``license``::

    [[component]]
    seam = "checkpoint"
    name = "nano"
    object = "deepinfer_model_nano:Nano"
    roles = ["driver"]

    [component.capabilities]
    models = ["nano"]
    license = "public domain"

It is imported only when one of its models is asked for, and must import nothing heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs


@attrs.frozen(kw_only=True)
class CheckpointFiles:
    """One model on this machine.

    path: folder in the published format: ``config.json``, safetensors, tokenizer.
    license: of the weights, as a person would write it.
    card: Markdown that tells what the model is, what it learnt from, and how well it does; None for none.
    """

    path: Path = attrs.field(converter=Path)
    license: str
    card: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))


@runtime_checkable
class Checkpoint(Protocol):
    """A component of the seam."""

    def locate(self, name: str) -> CheckpointFiles:
        """Where the files of ``name``, one of the manifest's ``models``, are. Never touches a network."""
        ...
