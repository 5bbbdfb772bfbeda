"""Reading ``config.json`` and ``generation_config.json`` of a checkpoint folder. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.errors import CheckpointError, ConfigError, DeepInferError, nearest

#: generation_config.json keys that are sampling defaults, and the SamplingParams field each sets.
_SAMPLING_DEFAULTS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@attrs.frozen
class HFConfig:
    """A checkpoint's configuration, as its files say."""

    path: Path
    architecture: str
    config: Mapping[str, Any]
    """``config.json``."""
    generation: Mapping[str, Any]
    """``generation_config.json``; empty when there is none."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """End tokens of both files as one set, in order of appearance."""
        text = self.config.get("text_config")
        sources = [self.config, text if isinstance(text, Mapping) else {}, self.generation]
        return tuple(dict.fromkeys(token for source in sources for token in _end_tokens(source)))

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """SamplingParams fields that the checkpoint's author suggests, for fields a request leaves out."""
        defaults = {
            field: self.generation[name]
            for name, field in _SAMPLING_DEFAULTS.items()
            if self.generation.get(name) is not None
        }
        if self.generation.get("do_sample") is False:
            defaults["temperature"] = 0.0
        return defaults


def load_hf_config(path: str | Path, known_architectures: Iterable[str] | None = None) -> HFConfig:
    """Read the configuration of the checkpoint folder ``path``.

    Raises CheckpointError for a missing folder or file and ConfigError for its contents, such as an
    architecture outside ``known_architectures`` (None accepts any).
    """
    folder = Path(path)
    if not folder.exists():
        raise CheckpointError(f"there is no folder {folder}; model must be the path of a checkpoint folder")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; model must be the path of a checkpoint folder")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json, so it is not a checkpoint folder")
    config = read_json_table(folder / "config.json", ConfigError)
    generation = folder / "generation_config.json"
    result = HFConfig(
        path=folder,
        architecture=_architecture(config, known_architectures),
        config=config,
        generation=read_json_table(generation, ConfigError) if generation.is_file() else {},
    )
    _ = result.eos_token_ids  # a malformed id is refused here, not at the first request
    return result


def read_json_table(path: Path, error: type[DeepInferError]) -> dict[str, Any]:
    """Parse a JSON file that must hold one table. Raises ``error`` naming the file and the place."""
    try:
        return parse_json_table(path.read_bytes(), str(path), error)
    except OSError as cause:
        raise error(f"cannot read {path}: {cause.strerror}") from cause


def parse_json_table(data: bytes, where: str, error: type[DeepInferError]) -> dict[str, Any]:
    """Parse JSON that must be one table without repeated keys. Raises ``error`` naming ``where``."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise error(f"{where} has the key {repeated!r} twice")
        return result

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=table)
    except UnicodeDecodeError as cause:
        raise error(f"{where} is not UTF-8 text: byte {cause.start} is {data[cause.start]:#04x}") from cause
    except json.JSONDecodeError as cause:
        raise error(f"{where} is not valid JSON: {cause.msg} at line {cause.lineno}, column {cause.colno}") from cause
    except RecursionError as cause:
        raise error(f"{where} is nested too deeply to be a checkpoint's JSON") from cause
    if not isinstance(value, dict):
        raise error(f"{where} must hold a JSON object, got {type(value).__name__}")
    return value


def _architecture(config: Mapping[str, Any], known: Iterable[str] | None) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(f"config.json must have architectures with exactly one name, got {names!r}")
    known = None if known is None else sorted(known)
    if known is not None and names[0] not in known:
        raise ConfigError(
            f"unknown architecture {names[0]!r}{nearest(names[0], known)} (known: {', '.join(known) or 'none'})"
        )
    return names[0]


def _end_tokens(source: Mapping[str, Any]) -> list[int]:
    value = source.get("eos_token_id")
    tokens = value if isinstance(value, list) else [] if value is None else [value]
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ConfigError(f"eos_token_id must be a token id or a list of them, got {value!r}")
    return tokens
