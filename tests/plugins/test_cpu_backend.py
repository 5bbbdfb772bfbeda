"""The CPU backend: memory as the process may use it, and thread counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.interfaces.backend import Backend, HostPoolBackend
from deepinfer_core.worker.host_pool import new_host_pool
from deepinfer_plugin_cpu.backend import CpuBackend
from deepinfer_plugin_cpu.memory import available_and_total

MIB = 2**20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system of a machine with 8 MiB, 6 of them available, without control groups."""
    write(
        tmp_path / "proc/meminfo", "MemTotal:  8192 kB\nMemFree: 1024 kB\nMemAvailable: 6144 kB\nHugePages_Total: 0\n"
    )
    return tmp_path


def v1(root: Path, group: str, limit: int, used: int, cache: int = 0) -> None:
    folder = root / "sys/fs/cgroup/memory" / group
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{used}\n")
    write(folder / "memory.stat", f"cache 1\ntotal_inactive_file {cache}\n")


def v2(root: Path, group: str, limit: int | str, used: int, cache: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / group
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{used}\n")
    write(folder / "memory.stat", f"anon 1\ninactive_file {cache}\n")


def test_without_a_control_group_it_is_the_machines(root: Path) -> None:
    assert available_and_total(root) == (6 * MIB, 8 * MIB)


def test_a_v2_limit_counts_and_its_page_cache_is_free(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a/b\n")
    v2(root, "a/b", 4 * MIB, 3 * MIB, MIB)
    assert available_and_total(root) == (2 * MIB, 4 * MIB)


def test_the_tightest_enclosing_group_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a/b\n")
    v2(root, "a/b", "max", 3 * MIB)
    v2(root, "a", 5 * MIB, 4 * MIB)
    assert available_and_total(root) == (MIB, 5 * MIB)


def test_a_v1_limit_counts_and_unlimited_does_not(root: Path) -> None:
    write(root / "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n")
    v1(root, "", 2**63 - 4096, 7 * MIB)
    assert available_and_total(root) == (6 * MIB, 8 * MIB)
    v1(root, "job", 3 * MIB, 4 * MIB)
    assert available_and_total(root) == (0, 3 * MIB)


@given(st.integers(1, 16), st.integers(0, 16), st.integers(0, 16))
def test_available_is_never_negative_nor_above_total(limit: int, used: int, cache: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write(path / "proc/meminfo", "MemTotal: 8192 kB\nMemFree: 6144 kB\n")
        write(path / "proc/self/cgroup", "0::/a\n")
        v2(path, "a", limit * MIB, used * MIB, cache * MIB)
        available, total = available_and_total(path)
        assert total == min(limit, 8) * MIB
        assert 0 <= available <= total


def test_the_backend_reports_this_machine() -> None:
    backend = CpuBackend()
    assert isinstance(backend, Backend) and isinstance(backend, HostPoolBackend)
    assert backend.device.type == "cpu"
    available, total = backend.memory_info()
    assert 0 < available <= total


def test_thread_counts_are_applied_undone_and_checked() -> None:
    import os

    import torch

    from deepinfer_kernels import cpu

    backend, before, usable = CpuBackend(), torch.get_num_threads(), len(os.sched_getaffinity(0))
    default = cpu.get_num_threads()
    try:
        for asked, got in ((1, 1), (None, usable)):
            backend.configure(asked)
            assert torch.get_num_threads() == got
            with new_host_pool(backend, asked) as pool:
                assert pool.num_threads == cpu.get_num_threads() == got
            assert cpu.get_num_threads() == default, "outside of engines nothing has changed"
        with pytest.raises(ValueError, match="num_threads must be at least 1, got 0"):
            backend.configure(0)
    finally:
        backend.configure(before)
