"""Check the wheels in a folder: what is in them, and that they work without the source tree.

Usage: ``python tools/check_wheels.py dist``, in an environment that has the third-party dependencies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

#: Distribution -> patterns that must each match a file of its wheel.
CONTENTS = {
    "deepinfer_core": [
        "deepinfer_core/py.typed",
        "deepinfer_core/_C.*",
        "*/entry_points.txt",
        "*/LICENSE",
        "deepinfer_core/templates/seams.toml",
        "deepinfer_core/templates/*.j2",
        "deepinfer_core/testing/*.py",
    ],
    "deepinfer_kernels": ["deepinfer_kernels/py.typed", "deepinfer_kernels/_cpu.*"],
    "deepinfer_plugin_cpu": ["deepinfer_plugin_cpu/deepinfer_plugin.toml", "*/entry_points.txt"],
    "deepinfer_plugin_deepseek": ["deepinfer_plugin_deepseek/deepinfer_plugin.toml", "*/entry_points.txt"],
    "deepinfer_model_tiny": ["deepinfer_model_tiny/checkpoint/config.json", "*/checkpoint/*.safetensors"],
    "deepinfer_plugin_llama": ["deepinfer_plugin_llama/deepinfer_plugin.toml", "*/entry_points.txt"],
}


def problems_of(wheel: Path, distribution: str) -> list[str]:
    """What a wheel lacks, or carries beyond its own package and metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    lacking = [pattern for pattern in CONTENTS[distribution] if not any(fnmatch(name, pattern) for name in names)]
    strays = {name.split("/")[0] for name in names if not name.startswith((f"{distribution}/", f"{distribution}-"))}
    return [f"{wheel.name} lacks {pattern}" for pattern in lacking] + [f"{wheel.name} carries {s}" for s in strays]


def run_unpacked(wheels: Sequence[Path]) -> None:
    """Generate with the wheels' code alone: ``-S`` keeps editable installs of the environment out."""
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, sysconfig.get_paths()["purelib"]])}
        code = (
            "import sys, deepinfer_core, deepinfer_kernels\n"
            f"assert deepinfer_core.__file__.startswith({folder!r}), deepinfer_core.__file__\n"
            f"assert deepinfer_kernels.__file__.startswith({folder!r}), deepinfer_kernels.__file__\n"
            "from deepinfer_core.cli.main import main\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-S", "-c", code, "generate", "--max-tokens", "4", "A hacker is"]
        subprocess.run(command, check=True, cwd=folder, env=environment)


def main(folder: Path) -> int:
    """Command line entry; returns the exit status."""
    found = {distribution: sorted(folder.glob(f"{distribution}-*.whl")) for distribution in CONTENTS}
    problems = [f"{name}: {len(wheels)} wheels, expected 1" for name, wheels in found.items() if len(wheels) != 1]
    if not problems:
        problems = [text for name, wheels in found.items() for text in problems_of(wheels[0], name)]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    run_unpacked([wheels[0] for wheels in found.values()])
    print(f"{len(found)} wheels are complete and work on their own")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
