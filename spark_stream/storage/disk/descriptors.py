"""Open files: a bound over all logs of a process, and early writes in the background.

The descriptor of a file that was not used recently is closed. The next use opens another. This
loses no write error: the next fsync of the file reports an error that was not reported yet, even
through another descriptor (Linux 4.17 and later, which PostgreSQL relies on too).

*Early writes* send appended bytes to the disk before an fsync. If the disk has a backlog, even the
call that starts such a write waits for it. An append would hold its partition's lock during that
time, so a separate thread does it. The bytes in that thread's queue are bounded. Beyond the bound
the appending thread does it, and becomes as slow as the disk. So a later fsync never has much to
write.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spark_stream.operating_system import drop_pages

# Enough that the partitions of a busy broker (two files each) rarely wait for an open. Many systems
# allow a process 1,024 open files, and connections need most of them.
OPEN_FILES_MAX: Final = 128
SPARE_FILES: Final = 16
"""Unused descriptors of a process, reserved for a hand-over of its partitions."""
OTHER_FILES: Final = 128
"""Descriptors for the metadata store, other brokers and threads. Clients come on top."""


def files_needed(partitions: int) -> int:
    """Return the number of open files of a broker with these partitions, without its clients."""
    return min(OPEN_FILES_MAX, 2 * partitions) + SPARE_FILES + OTHER_FILES


class SpareFiles:
    """Unused descriptors. One thread releases them if the process has none left."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[Descriptor] = []
        self._refill()

    def _refill(self) -> None:
        with suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(Descriptor(os.open(os.devnull, os.O_RDONLY)))

    @contextmanager
    def released(self) -> Iterator[None]:
        """Free the descriptors for the time of the block."""
        self._held.clear()
        try:
            yield
        finally:
            self._refill()


class Descriptor:
    """The number of an open file. Its users hold this object, so that no other file gets it."""

    __slots__ = ("number", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.used = True

    def __del__(self) -> None:
        os.close(self.number)


class PooledFile:
    """A file that the pool opens on demand, and may close. It must exist at each use."""

    __slots__ = ("_closed", "_identity", "_pool", "held", "path")

    def __init__(self, path: Path, pool: DescriptorPool) -> None:
        self.path = path
        self.held: Descriptor | None = None
        self._pool = pool
        self._closed = False
        self._identity: tuple[int, int] | None = None

    def descriptor(self) -> Descriptor:
        """Return the open file.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file is closed.
        """
        held = self.held or self._pool.open(self)
        held.used = True
        return held

    def opened_as(self, number: int) -> None:
        """Record device and inode at the first open. Later opens keep them."""
        if self._identity is None:
            found = os.fstat(number)
            self._identity = found.st_dev, found.st_ino

    def identity(self) -> tuple[int, int]:
        """Return device and inode as of the first open. Errors: as for :meth:`descriptor`."""
        if self._identity is None:
            self.descriptor()
        assert self._identity is not None
        return self._identity

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the file. A thread that uses it at present can finish."""
        self._closed = True
        self._pool.forget(self)


class DescriptorPool:
    """A pool of at most ``most`` open files. It closes files that were not used recently."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[PooledFile, None] = {}  # a ring: the first is the next candidate

    def __len__(self) -> int:
        return len(self._open)

    def open(self, file: PooledFile) -> Descriptor:
        """Open the file, unless another thread has just done so. At the limit, close another."""
        with self._lock:
            if file.closed:
                raise ValueError(f"{file.path} is closed")
            held = file.held
            if held is not None:
                return held
            held = Descriptor(os.open(file.path, os.O_RDWR))
            file.opened_as(held.number)
            surplus = self._keep(file, held)
        del surplus
        return held

    def adopt(self, file: PooledFile, held: Descriptor) -> None:
        """Take over the descriptor of a file that was just created."""
        file.opened_as(held.number)
        with self._lock:
            surplus = self._keep(file, held)
        del surplus

    def _keep(self, file: PooledFile, held: Descriptor) -> list[Descriptor]:
        """Record the file as open. Return the descriptors to close outside the lock."""
        surplus = []
        while len(self._open) >= self._most:
            surplus += self._taken_from_one()
        file.held = held
        self._open[file] = None
        return surplus

    def forget(self, file: PooledFile) -> None:
        with self._lock:
            self._open.pop(file, None)
            file.held = None

    def _taken_from_one(self) -> list[Descriptor]:
        """Take the descriptor of the ring's first file, unless the file was used since."""
        file = next(iter(self._open))
        del self._open[file]
        held = file.held
        if held is None:
            return []
        if held.used:
            held.used = False
            self._open[file] = None
            return []
        file.held = None
        return [held]


WAITING_BYTES_MAX: Final = 64 << 20
THREAD_NAME: Final = "isolog-early-writing"


class EarlyWriting:
    """The queue of early writes for all files of a process, for any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Descriptor, int, int]] = deque()
        self._bytes = 0
        self._process = 0  # the process with the thread: a forked child has no thread

    def start(self, file: Descriptor, position: int, length: int) -> None:
        """Queue an early write of these bytes. Beyond the queue's bound, start it directly."""
        with self._changed:
            if self._bytes + length <= WAITING_BYTES_MAX:
                self._bytes += length
                self._waiting.append((file, position, length))
                self._changed.notify_all()
                if self._process != os.getpid():
                    self._process = os.getpid()
                    threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()
                return
        _start(file, position, length)

    def settle(self) -> None:
        """Wait until the queue is empty."""
        with self._changed:
            while self._bytes:
                self._changed.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                file, position, length = self._waiting.popleft()
            _start(file, position, length)
            del file  # the last reference closes the file
            with self._changed:
                self._bytes -= length
                self._changed.notify_all()


def _start(file: Descriptor, position: int, length: int) -> None:
    """Start the write of these bytes to the disk, without waiting for it.

    The purpose of the call is another one: to drop pages from memory that are on the disk already.
    For recently written bytes it only starts the write, and their pages stay in memory.
    """
    with suppress(OSError):  # the next fsync reports a failing disk
        drop_pages(file.number, position, length)


EARLY: Final = EarlyWriting()
