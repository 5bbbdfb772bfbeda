"""The guide to plugins is true: its files are written and its commands run, in order, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "plugins.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script() -> str:
    """Every block as shell: commands as they are, Python as a file."""
    parts = []
    for language, path, text in BLOCK.findall(GUIDE.read_text()):
        if language == "bash":
            parts.append(text)
        elif language == "python":
            assert path, "a file's block names the file"
            parts.append(f"cat > {shlex.quote(path)} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
    return "".join(parts)


def environment(folder: Path) -> dict[str, str]:
    """A virtual environment that sees everything installed here, and in which installing touches nothing here."""
    venv, shims = folder / "venv", folder / "shims"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    # Plain .pth lines would not run the .pth files of those folders, which editable installs consist of.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    (packages / "outer.pth").write_text("\n".join(lines))
    shims.mkdir()
    modules = {"pip": "pip", "pytest": "pytest", "deepinfer": "deepinfer_core.cli.main"}
    for name, module in modules.items():
        (shims / name).write_text(f'#!/bin/sh\nexec "{venv}/bin/python" -m {module} "$@"\n')
        (shims / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEEPINFER_", "PIP_", "PYTHON"))}
    return {
        **kept,
        "PATH": os.pathsep.join([str(shims), str(venv / "bin"), os.environ["PATH"]]),
        "MODEL": str(ROOT / "tests" / "data" / "v41-tiny-bf16"),
        # No network here: build with the tools that are installed.
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "XDG_CONFIG_HOME": str(folder / "config"),
    }


def test_every_command_of_the_guide_works(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    child = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script()],
        cwd=work,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, f"{child.stdout}\n{child.stderr}"
    assert "extra['no-echo'] is refused: it must be a number of tokens from 1 to 1024, got 0" in child.stderr
    assert "epsilon must be in (0, 1), got 7" in child.stderr
    assert "largest step: 512 rows first come first served, 1" in child.stdout
    last = child.stdout[child.stdout.rindex("name ") :]
    assert "cpu" in last and "no-echo" not in last, "uninstalled plugins are gone from the list"


def test_the_guide_links_to_what_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", GUIDE.read_text()):
        assert (GUIDE.parent / target).exists(), target
