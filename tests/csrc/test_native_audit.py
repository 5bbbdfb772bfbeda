"""Compiles the scheduler as plain C++20, without Python, and lets `native_audit.cpp` damage it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["block_manager.cpp", "sampling_state.cpp", "sequence.cpp", "scheduler.cpp", "scheduler_audit.cpp"]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++20 compiler")
def test_audit_names_every_broken_invariant(tmp_path: Path) -> None:
    program = tmp_path / "native_audit"
    sources = [str(ROOT / "csrc" / name) for name in SOURCES]
    sources.append(str(Path(__file__).with_name("native_audit.cpp")))
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_ASSERTIONS", f"-I{ROOT / 'csrc'}"]
    built = subprocess.run([str(COMPILER), *flags, *sources, "-o", str(program)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
