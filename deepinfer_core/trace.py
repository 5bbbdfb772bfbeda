"""What host and device do, and when, as a file for a trace viewer (the Trace Event Format of Chrome)."""

from __future__ import annotations

import json
from pathlib import Path

#: Spans kept at most; what comes later is left out.
_MOST_SPANS = 1_000_000


class ChromeTrace:
    """Collects spans of time and writes them when it is closed.

    Adding one costs less than a microsecond; any thread may.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._spans: list[tuple[str, str, float, float]] = []

    def add(self, track: str, name: str, begin: float, end: float) -> None:
        """A span on a track, such as ``host`` or ``device``, in seconds of one clock."""
        if len(self._spans) < _MOST_SPANS:
            self._spans.append((track, name, begin, end))

    def close(self) -> None:
        """Write the file. Raises OSError if that cannot be done."""
        tracks = {track: number for number, track in enumerate(dict.fromkeys(span[0] for span in self._spans), start=1)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": track}}
            for track, number in tracks.items()
        ]
        spans = [
            {"ph": "X", "name": name, "pid": 1, "tid": tracks[track], "ts": 1e6 * begin, "dur": 1e6 * (end - begin)}
            for track, name, begin, end in self._spans
        ]
        self._path.write_text(json.dumps({"traceEvents": [*names, *spans]}), encoding="utf-8")
