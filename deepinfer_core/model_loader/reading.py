"""Byte ranges of files into memory, with a progress bar and a watchdog. Torch-free."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, BinaryIO

from tqdm import tqdm

from deepinfer_core.errors import CheckpointError
from deepinfer_core.model_loader.checkpoint import TensorInfo

#: Bytes per read: large enough for full disk speed, small enough to see progress.
CHUNK_BYTES = 16 << 20
#: How long a thread that was told to stop is waited for; one that is stuck in a read is left behind.
_JOIN_SECONDS = 1.0

#: A tensor, and a context in which the memory for its bytes, as many as it has, may be written.
Read = tuple[TensorInfo, Callable[[], AbstractContextManager["memoryview[Any]"]]]


def read_all(reads: Sequence[Read], *, use_tqdm: bool = True, watchdog_seconds: float = 1800.0) -> None:
    """Read each tensor's bytes into its memory, in the given order, from one thread.

    The bar shows only on a terminal. Raises CheckpointError when a file ends early or cannot be read, or when
    no byte arrives for ``watchdog_seconds``, naming the tensor, file and offset.
    """
    reader = _Reader(reads)
    total = sum(tensor.nbytes for tensor, _ in reads)
    thread = threading.Thread(target=reader.run, name="deepinfer-weights", daemon=True)
    bar = tqdm(total=total, unit="B", unit_scale=True, desc="Loading weights", disable=None if use_tqdm else True)
    with bar:
        thread.start()
        try:
            _watch(reader, bar, watchdog_seconds)
        finally:
            reader.stopped.set()
            thread.join(_JOIN_SECONDS)  # one that still held tensors as the interpreter ends would abort it
    if reader.error is not None:
        raise reader.error


def _watch(reader: _Reader, bar: tqdm[Any], watchdog_seconds: float) -> None:
    """Wait for the reader, feeding the bar. A read that blocks inside the kernel is left to its daemon thread."""
    last_done, last_time = 0, time.monotonic()
    while True:
        finished = reader.finished.wait(min(0.1, watchdog_seconds / 4))
        done, now = reader.done, time.monotonic()
        bar.update(done - last_done)
        if finished:
            return
        if done != last_done:
            last_done, last_time = done, now
        elif now - last_time > watchdog_seconds:
            raise CheckpointError(
                f"loading weights made no progress for {watchdog_seconds:g} s: stuck at {reader.where}; check the "
                "disk or network drive, or raise load_watchdog_seconds"
            )


class _Reader:
    """Reads in its own thread, so that a stuck disk cannot stop the watchdog."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self.reads = reads
        self.done = 0
        self.where = "the start"
        self.error: BaseException | None = None
        self.finished = threading.Event()
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            for shard, group in groupby(self.reads, key=lambda read: read[0].shard):
                with shard.open("rb", buffering=0) as file:
                    for tensor, memory in group:
                        with memory() as buffer:
                            self._read(file, tensor, buffer)
        except OSError as cause:
            self.error = CheckpointError(f"cannot read {self.where}: {cause.strerror or cause}")
        except BaseException as error:  # whatever it is, it belongs to the thread that waits
            self.error = error
        finally:
            self.finished.set()

    def _read(self, file: BinaryIO, tensor: TensorInfo, buffer: memoryview[Any]) -> None:
        if buffer.nbytes != tensor.nbytes:
            raise ValueError(f"{tensor.name} has {tensor.nbytes} bytes but its buffer has {buffer.nbytes}")
        file.seek(tensor.begin)
        position = 0
        while position < tensor.nbytes and not self.stopped.is_set():
            self.where = f"{tensor.stored_name!r} in {tensor.shard}, byte {tensor.begin + position}"
            count = read_into(file, buffer[position : position + CHUNK_BYTES])
            if not count:
                raise CheckpointError(f"{tensor.shard} ended while reading {self.where}: it was cut meanwhile")
            position += count
            self.done += count


def read_into(file: BinaryIO, buffer: memoryview[Any]) -> int:
    """One read of an unbuffered file; returns bytes read, 0 at the end of the file."""
    return file.readinto(buffer)  # type: ignore[attr-defined, no-any-return]
