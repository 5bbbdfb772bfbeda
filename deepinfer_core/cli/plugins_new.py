"""``deepinfer plugins new``: write a distribution with one plugin that works and whose tests pass."""

from __future__ import annotations

import argparse
import keyword
import re
import tomllib
from pathlib import Path
from typing import Any

from deepinfer_core.cli.plugins_list import forgiving_manager
from deepinfer_core.errors import ConfigError, nearest
from deepinfer_core.interfaces.seams import SEAMS

TEMPLATES = Path(__file__).parents[1] / "templates"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
#: Files that every distribution has, and the templates they come from.
_FILES = {
    "pyproject.toml": "plugin/pyproject.toml.j2",
    "README.md": "plugin/README.md.j2",
    ".gitignore": "plugin/gitignore.j2",
    ".github/workflows/ci.yml": "plugin/ci.yml.j2",
    "{package}/__init__.py": "plugin/init.py.j2",
    "{package}/py.typed": None,
    "{package}/deepinfer_plugin.toml": "plugin/manifest.toml.j2",
    "{package}/{module}.py": "seams/{seam}.py.j2",
    "{package}/conformance.py": "plugin/conformance.py.j2",
    "tests/test_conformance.py": "plugin/test_conformance.py.j2",
}
#: Further files of a seam.
_SEAM_FILES = {
    "speculator": {"{package}/drafter.py": "seams/speculator_drafter.py.j2"},
    "multimodal": {"{package}/encoder.py": "seams/multimodal_encoder.py.j2"},
    "model": {"{package}/network.py": "seams/model_network.py.j2"},
    "checkpoint": {
        "{package}/checkpoint/config.json": "seams/checkpoint_config.json.j2",
        "{package}/checkpoint/README.md": "seams/checkpoint_card.md.j2",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer plugins new``."""
    parser.add_argument("name", metavar="NAME", help="the plugin's name: small letters, digits and '-'")
    parser.add_argument("--seam", required=True, metavar="SEAM", help=f"what it provides: {', '.join(seams())}")
    parser.add_argument(
        "--path", type=Path, default=Path(), metavar="DIR", help="where the folder NAME is made (default: here)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the distribution and say how to go on."""
    known = seams()
    if args.seam not in known:
        raise ConfigError(f"unknown seam {args.seam!r}{nearest(args.seam, known)} (known: {', '.join(known)})")
    _check_name(args.name)
    folder = args.path / args.name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; choose another name or --path, or remove it")
    files = render(args.name, args.seam)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{folder}: {len(files)} files. To go on:\n\n  cd {folder}\n  pip install -e '.[test]'\n  pytest")
    return 0


def seams() -> dict[str, dict[str, Any]]:
    """By seam, what its plugins have of their own."""
    return tomllib.loads((TEMPLATES / "seams.toml").read_text(encoding="utf-8"))


def render(name: str, seam: str) -> dict[str, str]:
    """The distribution's files, by path relative to its folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    own = seams()[seam]
    major, minor = SEAMS[seam].version
    values = {
        "name": name,
        "seam": seam,
        "distribution": f"deepinfer-{name}",
        "package": f"deepinfer_{name.replace('-', '_')}",
        "class": _class_name(name),
        "api": f"{major}.{minor}",
        "module": own["module"],
        "suite": own["suite"],
        "summary": own["summary"],
        "usage": own["try"].replace("NAME", name),
        "dependencies": sorted(["deepinfer-core", *own["dependencies"]]),
    }
    for key in ("manifest", "conformance"):
        values[key] = environment.from_string(own.get(key, "")).render(values).rstrip()
    sources = {**_FILES, **_SEAM_FILES.get(seam, {})}
    return {
        path.format(**values): environment.get_template(source.format(**values)).render(values) if source else ""
        for path, source in sources.items()
    }


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(_class_name(name)):
        raise ConfigError(f"NAME must be small letters and digits, with '-' between words, got {name!r}")
    owners = {record.name: record.distribution for record in forgiving_manager(None).records}
    if name in owners:
        raise ConfigError(f"there is a plugin {name!r} already, of {owners[name]}; two of one name cannot be used")


def _class_name(name: str) -> str:
    words = "".join(word.capitalize() for word in name.split("-"))
    return f"Plugin{words}" if words[0].isdigit() else words
