"""Starts writing appended bytes to the disk before a force, in the background of the appends.

Starting such a write can take as long as the disk is behind. An append would hold its partition's
lock meanwhile, so a separate thread does it. The bytes that wait for that thread are bounded.
Beyond the bound the appending thread does it, and becomes as slow as the disk: so a later force
never has much to wait for.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from spark_stream.storage.disk.descriptors import Descriptor

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
            self._changed.wait_for(lambda: not self._bytes)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
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
