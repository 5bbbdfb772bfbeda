"""Snapshots of the Hugging Face hub: what its cache has, else a download."""

from __future__ import annotations

import logging
from pathlib import Path

from deepinfer_core.errors import CheckpointError, DeepInferError
from deepinfer_core.model_loader.checkpoint import CheckpointIndex

logger = logging.getLogger(__name__)

#: What a checkpoint consists of; repositories also hold code and other formats of the same weights.
_FILES = ["*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE*"]


def snapshot(repo_id: str) -> Path:
    """The folder of a repository's files. A complete snapshot in the cache is used as it is, without a
    network; otherwise what is missing is downloaded. Raises CheckpointError when neither is possible.
    """
    import huggingface_hub

    try:
        cached = Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=_FILES, local_files_only=True))
        if _is_complete(cached):
            return cached
        logger.info("the snapshot of %s in the cache lacks files; downloading them", repo_id)
    except FileNotFoundError:
        logger.info("%s is not in the Hugging Face cache; downloading it", repo_id)
    except ValueError as error:
        raise CheckpointError(f"{repo_id!r} is no name of a Hugging Face repository: {error}") from error
    try:
        return Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=_FILES))
    except Exception as error:  # network, HTTP and cache errors of that library have no common base
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise CheckpointError(
            f"the Hugging Face repository {repo_id} is not in the cache and cannot be downloaded: "
            f"{type(error).__name__}: {reason}; download it where there is a network and give its folder as the model"
        ) from error


def _is_complete(folder: Path) -> bool:
    """Whether a snapshot has its config and every shard whole; a broken download may have left out some."""
    try:
        CheckpointIndex.open(folder)
    except DeepInferError:
        return False
    return (folder / "config.json").is_file()
