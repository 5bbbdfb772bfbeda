"""``deepinfer env``: everything a bug report needs. Imports neither torch nor any plugin."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from deepinfer_core import _C, envs
from deepinfer_core.cli.parser import add_config_argument
from deepinfer_core.cli.plugins_list import plugin_rows
from deepinfer_core.cli.tables import print_table
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins.settings import find_file, user_file

_PACKAGES: Final = (
    "deepinfer-core", "deepinfer-kernels", "torch", "transformers", "tokenizers", "numpy", "pluggy", "attrs",
)  # fmt: skip
_FEATURES: Final = ("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer env``."""
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    report = {
        "versions": _versions(),
        "platform": _platform(),
        "settings": {"configuration_file": str(find_file(args.config) or f"none ({user_file()} does not exist)")},
        "variables": _variables(),
        "plugins": [attrs.asdict(row) for row in plugin_rows(args.config)],
    }
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    for title in ("versions", "platform", "settings"):
        print(f"{title}:")
        for name, value in report[title].items():  # type: ignore[attr-defined]
            print(f"  {name}: {' '.join(value) if isinstance(value, list) else value}")
    for title in ("variables", "plugins"):
        print(f"{title}:")
        rows: list[dict[str, Any]] = report[title]  # type: ignore[assignment]
        print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    return 0


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _platform() -> dict[str, Any]:
    model, features = _processor()
    return {
        "system": platform.platform(),
        "executable": sys.executable,
        "processor": model,
        "features": features,
        "cpus": os.cpu_count(),
        "usable_cpus": _C.usable_cpus(),
    }


def _processor() -> tuple[str, list[str]]:
    """Model and those of its features that our kernels may use, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), []
    fields = dict(line.replace("\t", "").split(":", 1) for line in text.splitlines() if ":" in line)
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name", platform.machine()).strip(), [name for name in _FEATURES if name in flags]


def _variables() -> list[dict[str, str]]:
    """Every variable we read, and every other one with our prefix."""
    rows = [_variable(variable, os.environ) for variable in envs.VARIABLES.values()]
    for name, hint in envs.unknown().items():
        rows.append({"variable": name, "value": os.environ[name], "state": f"unknown{hint}", "meaning": ""})
    return rows


def _variable(variable: envs.Variable, environ: Mapping[str, str]) -> dict[str, str]:
    text = environ.get(variable.name)
    state = "default" if text is None else "set"
    try:
        envs.read(variable.name, environ)
    except ConfigError as error:
        state = f"invalid: {error}"
    value = str(variable.default) if text is None else text
    return {"variable": variable.name, "value": value, "state": state, "meaning": variable.doc}
