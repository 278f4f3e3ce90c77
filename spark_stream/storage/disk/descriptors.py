"""How many files are open at once: a bound over all logs of a process, whatever their number.

A file that was not used for a while gives its descriptor up, and gets another when it is used
again. What was written through the first is not lost to the second: a write's error that nobody has
seen yet is told to whoever forces the file next, through whatever descriptor (Linux 4.17 and later;
PostgreSQL relies on the same).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

# Enough that a busy broker's partitions (two files each) rarely wait for an open, and far below the
# 1,024 that many systems allow a process, of which Flight's connections need most.
OPEN_FILES_MAX: Final = 128


class Descriptor:
    """An open file's number. Whoever uses it holds this, so no other file gets it meanwhile."""

    __slots__ = ("number", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.used = True

    def __del__(self) -> None:
        os.close(self.number)


class PooledFile:
    """A file that is open only while the pool lets it be. It must exist when it is used."""

    __slots__ = ("_closed", "_identity", "_pool", "held", "path")

    def __init__(self, path: Path, pool: DescriptorPool) -> None:
        self.path = path
        self.held: Descriptor | None = None
        self._pool = pool
        self._closed = False
        self._identity: tuple[int, int] | None = None

    def descriptor(self) -> Descriptor:
        """Return the open file. OSError if it cannot be opened, ValueError once it is closed."""
        held = self.held or self._pool.open(self)
        held.used = True
        return held

    def opened_as(self, number: int) -> None:
        """Note which file that is, when it is opened first; later descriptors do not change it."""
        if self._identity is None:
            found = os.fstat(number)
            self._identity = found.st_dev, found.st_ino

    def identity(self) -> tuple[int, int]:
        """Return device and inode of what was opened first; raise as :meth:`descriptor`."""
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
    """Keeps at most ``most`` files open; the next ones to close are those not used of late."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: dict[PooledFile, None] = {}  # a ring: its first is looked at next

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
        """Note the file as open; return what to close once the lock is let go."""
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
