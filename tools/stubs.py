"""Write `deepinfer_core/_C.pyi` from the built extension; with `--check`, only compare and exit 1 on a difference."""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "deepinfer_core._C"
TARGET = Path(__file__).resolve().parent.parent / "deepinfer_core" / "_C.pyi"


def generate() -> str:
    """The stub text of the extension that this interpreter imports."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", MODULE, "--exit-code", "-o", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (Path(folder) / "deepinfer_core" / "_C.pyi").read_text(encoding="utf-8")


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    expected = generate()
    if not check:
        TARGET.write_text(expected, encoding="utf-8")
        return 0
    found = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if found == expected:
        return 0
    diff = difflib.unified_diff(found.splitlines(), expected.splitlines(), str(TARGET), "generated", lineterm="")
    print("\n".join(diff))
    print(f"{TARGET.name} is out of date: rebuild the extension and run `make stubs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
