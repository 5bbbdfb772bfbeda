"""``tests/plugins/seam_signatures.txt``: every seam's signatures beside its version, so that none moves unnoticed.

Usage: ``python tools/seam_signatures.py`` rewrites the file. It refuses a seam whose signatures moved while its
version in ``interfaces/seams.py`` did not: what a plugin was written for would no longer be what it meets. A version
that no release has had may still change: ``--unreleased``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen
from seam_source import ROOT, modules_of

from deepinfer_core.interfaces.seams import SEAMS

TARGET = ROOT / "tests" / "plugins" / "seam_signatures.txt"


@frozen
class Signatures:
    """One seam: its version and its signatures, one a line."""

    version: tuple[int, int]
    lines: tuple[str, ...]


def current() -> dict[str, Signatures]:
    """The signatures as the source has them."""
    return {name: Signatures(seam.version, tuple(_lines(name))) for name, seam in SEAMS.items()}


def _lines(seam: str) -> list[str]:
    lines = []
    for module in modules_of(seam):
        for cls in module.classes:
            kind = "protocol" if cls.is_protocol else "class"
            members = [f"{kind} {cls.name}.{' '.join(member.signature.split())}" for member in cls.members]
            lines += members or [f"{kind} {cls.name}"]
    return lines


def as_text(seams: Mapping[str, Signatures]) -> str:
    """The file's text."""
    parts = []
    for name, seam in seams.items():
        parts.append("\n".join([f"{name} {seam.version[0]}.{seam.version[1]}", *(f"  {line}" for line in seam.lines)]))
    return "\n\n".join(parts) + "\n"


def parse(text: str) -> dict[str, Signatures]:
    """What :func:`as_text` wrote."""
    seams = {}
    for part in filter(None, text.split("\n\n")):
        head, *lines = part.strip("\n").split("\n")
        name, _, version = head.partition(" ")
        major, _, minor = version.partition(".")
        seams[name] = Signatures((int(major), int(minor)), tuple(line.strip() for line in lines))
    return seams


def problems(old: Mapping[str, Signatures], new: Mapping[str, Signatures]) -> list[str]:
    """Seams that moved without their version, with the version they need.

    A member that is gone or changed, or that plugins would now have to implement, needs a new major version; anything
    else that is added, such as a protocol that none has to implement, a minor one. A seam that had no signatures is
    free.
    """
    found = []
    for name, seam in new.items():
        before = old.get(name)
        if before is None or not before.lines:
            continue
        gone = [line for line in before.lines if line not in seam.lines]
        added = [line for line in seam.lines if line not in before.lines]
        if not gone and not added:
            continue
        implemented = {_protocol(line) for line in before.lines if line.startswith("protocol ")}
        is_breaking = bool(gone) or any(_protocol(line) in implemented for line in added)
        major, minor = before.version
        needed = (major + 1, 0) if is_breaking else (major, minor + 1)
        if seam.version < needed:
            changes = "; ".join([*(f"gone: {line}" for line in gone), *(f"new: {line}" for line in added)])
            found.append(
                f"seam {name!r} moved and needs version {needed[0]}.{needed[1]} in interfaces/seams.py (or, where no "
                f"release has had {major}.{minor}, run tools/seam_signatures.py --unreleased): {changes}"
            )
    return found


def _protocol(line: str) -> str:
    """``protocol Name``, of a member's line."""
    return line.partition(".")[0]


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unreleased", action="store_true", help="the versions that moved are in no release yet")
    unreleased = parser.parse_args().unreleased
    old = parse(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
    found = problems(old, current())
    if found and not unreleased:
        print("\n".join(found), file=sys.stderr)
        return 1
    Path(TARGET).write_text(as_text(current()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
