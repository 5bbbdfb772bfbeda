"""Names of the states that the native scheduler reports; the transition table is in `csrc/sequence.cpp`."""

from __future__ import annotations

from enum import StrEnum


class SequenceState(StrEnum):
    """State of a sequence, as `Scheduler.state(handle)` returns it."""

    HELD = "held"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED_STOP = "finished_stop"
    FINISHED_LENGTH = "finished_length"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"

    @property
    def is_finished(self) -> bool:
        """Whether the state is terminal."""
        return self.name.startswith("FINISHED_")
