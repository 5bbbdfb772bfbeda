"""What the name of a model means: a folder, an installed checkpoint, or a repository of the Hugging Face hub.

Torch-free.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.config import DEFAULT_MODEL
from deepinfer_core.errors import CheckpointError, ConfigError, nearest
from deepinfer_core.model_loader.hf_config import HFConfig, load_hf_config
from deepinfer_core.model_loader.hub import snapshot

if TYPE_CHECKING:
    from deepinfer_core.plugins.manager import PluginManager

logger = logging.getLogger(__name__)

_REPO_ID = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)


def open_model(model: str | Path, manager: PluginManager) -> HFConfig:
    """Find a model's folder and read its configuration. The only place where a model's name is looked up.

    In order: a Path, or text that names a checkpoint folder; the name of a checkpoint that an installed or
    given plugin ships, which makes that plugin active in ``manager``; ``org/name`` on the Hugging Face hub, from
    its cache or, where the network allows, downloaded.

    Raises ConfigError for an unknown name (with the known ones), CheckpointError for a folder without a
    checkpoint or a repository that cannot be had, PluginError for a plugin that fails.
    """
    folder = _find(model, manager)
    logger.info("model %s: %s", model, folder)
    return load_hf_config(folder)


def _find(model: str | Path, manager: PluginManager) -> Path:
    folder = Path(model)
    if isinstance(model, Path) or (folder / "config.json").is_file():
        return folder
    files = manager.checkpoint_for(model)
    if files is not None:
        return files.path
    if folder.exists() or folder.is_absolute() or model.startswith("."):
        return folder  # not a checkpoint, which reading it will say
    if _REPO_ID.fullmatch(model):
        return _from_hub(model)
    raise ConfigError(_unknown(model, manager))


def _from_hub(repo_id: str) -> Path:
    try:
        return snapshot(repo_id)
    except CheckpointError as error:
        raise CheckpointError(f"there is no folder {repo_id}, and {error}") from error


def _unknown(model: str, manager: PluginManager) -> str:
    known = [row.name for row in manager.checkpoints()]
    if model == DEFAULT_MODEL:
        listed = f"; installed: {', '.join(known)}" if known else ""
        return (
            f"the default model {model!r} is not installed; pip install deepinfer-model-{model}, or give a model "
            f"(a folder, an installed checkpoint or a Hugging Face org/name{listed})"
        )
    return (
        f"unknown model {model!r}{nearest(model, known)} (installed: {', '.join(known) or 'none'}); a model is a "
        "checkpoint folder, an installed checkpoint, or org/name on the Hugging Face hub"
    )
