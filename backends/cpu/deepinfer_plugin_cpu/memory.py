"""Host memory as this process may use it: the machine's, or less where a control group limits it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNITS = {"kB": 1024}


def available_and_total(root: Path = Path("/")) -> tuple[int, int]:
    """(available, total) bytes: the least of the machine's and of every enclosing cgroup's (v1 or v2).

    root: the file system's root, another one in tests. Without /proc/meminfo (not Linux) it asks sysconf.
    """
    available, total = _machine(root)
    for limit, used in _groups(root):
        total = min(total, limit)
        available = min(available, max(limit - used, 0))
    return available, total


def _machine(root: Path) -> tuple[int, int]:
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return _from_sysconf()
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, *unit = value.split()
        sizes[name] = int(number) * _UNITS.get("".join(unit), 1)
    return sizes.get("MemAvailable", sizes["MemFree"]), sizes["MemTotal"]


def _from_sysconf() -> tuple[int, int]:
    import os

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) bytes of each enclosing control group that sets a limit; the page cache is not used."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            yield from _limits(root / "sys/fs/cgroup", name, *names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limits(root / "sys/fs/cgroup/memory", name, *names)


def _limits(mount: Path, name: str, limit: str, usage: str, cache: str) -> Iterator[tuple[int, int]]:
    path = PurePosixPath(name.lstrip("/"))
    for folder in [mount / path, *(mount / parent for parent in path.parents)]:
        bound, used = _number(folder / limit), _number(folder / usage)
        if bound is not None and used is not None:
            yield bound, max(used - _statistic(folder / "memory.stat", cache), 0)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" means no limit


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
