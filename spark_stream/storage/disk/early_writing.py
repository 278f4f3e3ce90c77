"""Has the system write to the disk what no force has waited for yet, beside the appends.

To begin such a write takes as long as the disk is behind, so a thread of its own does it: an append
holds its partition meanwhile. What waits for that thread is bounded. Beyond the bound whoever
appends does it, and so becomes as slow as the disk: a later force has never much to wait for.
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
    """For all files of a process, from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Descriptor, int, int]] = deque()
        self._bytes = 0
        self._process = 0  # whose thread there is: a forked child has none

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
            del file  # with its last holder a file is closed
            with self._changed:
                self._bytes -= length
                self._changed.notify_all()


def _start(file: Descriptor, position: int, length: int) -> None:
    """Ask the system to begin writing these bytes.

    The call's own purpose is another: to drop from memory what is on the disk already. Bytes that
    were written a moment ago are not, and stay.
    """
    if sys.platform != "darwin":
        with suppress(OSError):  # a force would say so too, and is believed
            os.posix_fadvise(file.number, position, length, os.POSIX_FADV_DONTNEED)


EARLY: Final = EarlyWriting()
