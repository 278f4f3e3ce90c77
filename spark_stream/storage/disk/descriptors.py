"""Open files: a bound over all logs of a process, and early writes in the background.

A file that was not used for a while gives its descriptor up, and gets another when it is used
again. No write error is lost by that: the next force of the file reports an error that nobody has
seen yet, whatever descriptor it uses (Linux 4.17 and later; PostgreSQL relies on the same).

*Early writes* send appended bytes to the disk before an fsync. To start such a write can take as
long as the disk is behind. An append would hold its partition's lock during that time, so a
separate thread does it. The bytes in that thread's queue are bounded. Beyond the bound the
appending thread does it, and becomes as slow as the disk. So a later fsync never has much to write.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# Enough that a busy broker's partitions (two files each) rarely wait for an open. Many systems
# allow a process 1,024 open files, most of which Flight's connections need.
OPEN_FILES_MAX: Final = 128
SPARE_FILES: Final = 16
"""Descriptors that a process keeps unused, for the work of a hand-over."""
OTHER_FILES: Final = 128
"""Descriptors for everything else but clients: the metadata store, other brokers, threads."""


def files_needed(partitions: int) -> int:
    """Return the number of open files that a broker with these partitions needs without clients."""
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
                self._held.append(Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)))

    @contextmanager
    def released(self) -> Iterator[None]:
        """Free the descriptors for the time of the block."""
        self._held.clear()
        try:
            yield
        finally:
            self._refill()


class Descriptor:
    """The number of an open file. Whoever uses it holds this object, so no other file gets it."""

    __slots__ = ("number", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.used = True

    def __del__(self) -> None:
        os.close(self.number)


class PooledFile:
    """A file that the pool opens when needed, and may close. It must exist when it is used."""

    __slots__ = ("_closed", "_identity", "_pool", "held", "path")

    def __init__(self, path: Path, pool: DescriptorPool) -> None:
        self.path = path
        self.held: Descriptor | None = None
        self._pool = pool
        self._closed = False
        self._identity: tuple[int, int] | None = None

    def descriptor(self) -> Descriptor:
        """Return the open file; raise OSError if it cannot be opened, ValueError once closed."""
        held = self.held or self._pool.open(self)
        held.used = True
        return held

    def opened_as(self, number: int) -> None:
        """Note, at the first open only, which file this is."""
        if self._identity is None:
            found = os.fstat(number)
            self._identity = found.st_dev, found.st_ino

    def identity(self) -> tuple[int, int]:
        """Return device and inode as of the first open; raise what :meth:`descriptor` raises."""
        if self._identity is None:
            self.descriptor()
        assert self._identity is not None
        return self._identity

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the file for good; threads that are using it now may go on."""
        self._closed = True
        self._pool.forget(self)


class DescriptorPool:
    """Keeps at most ``most`` files open; closes those first that were not used lately."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[PooledFile, None] = {}  # a ring: the first file is the next candidate

    def __len__(self) -> int:
        return len(self._open)

    def open(self, file: PooledFile) -> Descriptor:
        """Open the file unless another thread just did; close another if the limit demands it."""
        with self._lock:
            if file.closed:
                raise ValueError(f"{file.path} is closed")
            held = file.held
            if held is not None:
                return held
            held = Descriptor(os.open(file.path, os.O_RDWR | os.O_CLOEXEC))
            file.opened_as(held.number)
            surplus = self._keep(file, held)
        del surplus
        return held

    def adopt(self, file: PooledFile, held: Descriptor) -> None:
        """Take over the descriptor of a file that was just made."""
        file.opened_as(held.number)
        with self._lock:
            surplus = self._keep(file, held)
        del surplus

    def _keep(self, file: PooledFile, held: Descriptor) -> list[Descriptor]:
        """Note the file as open; return what to close once the lock is released."""
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
        """Take the descriptor of the ring's first file, or spare it if it was used since."""
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
    """A queue of early writes for all files of a process; any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Descriptor, int, int]] = deque()
        self._bytes = 0
        self._process = 0  # the process that has the thread: a forked child has none

    def start(self, file: Descriptor, position: int, length: int) -> None:
        """Have these bytes written to the disk soon."""
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
        """Wait until no write is queued."""
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
            del file  # a file is closed with its last holder
            with self._changed:
                self._bytes -= length
                self._changed.notify_all()


def _start(file: Descriptor, position: int, length: int) -> None:
    """Ask the system to begin writing these bytes.

    The call is meant for something else: dropping from memory what is on the disk already. Bytes
    written a moment ago are not on the disk yet, so they stay in memory.
    """
    if sys.platform != "darwin":
        with suppress(OSError):  # the next force reports a failing disk
            os.posix_fadvise(file.number, position, length, os.POSIX_FADV_DONTNEED)


EARLY: Final = EarlyWriting()
