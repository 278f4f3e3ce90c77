"""What a broker gets from outside: time, names that nobody else has, and the machine it is on.

Code that takes them as arguments runs in a broker and under a simulator alike. Deadlines, timeouts
and leases go by ``monotonic``; ages of what is in files by ``steady_us``; the wall clock is only
for what people see and for the timestamps of records.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Tells the time."""

    def monotonic(self) -> float:
        """Seconds since some moment; never steps, and means nothing to another process."""

    def steady_us(self) -> int:
        """Microseconds since the epoch; it does not step while the process lives."""

    def wall_us(self) -> int:
        """Microseconds since the epoch, as the host's clock says; it may step either way."""


class Ids(Protocol):
    """Makes names."""

    def new_id(self) -> str:
        """32 hexadecimal digits that nobody else gets."""


class Machine(Protocol):
    """The machine whose kernel keeps what a process has written."""

    def boot_id(self) -> str | None:
        """Tells the machine's starts apart; None: it cannot, so any two starts may be two."""


class SystemClock:
    """The host's clocks. Its steady time is the wall clock of its making, moved on by itself."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def monotonic(self) -> float:
        return time.monotonic()

    def steady_us(self) -> int:
        return (self._offset_ns + time.monotonic_ns()) // 1_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000


class SystemIds:
    """Random names."""

    def new_id(self) -> str:
        return uuid.uuid4().hex


class SystemMachine:
    """The host; where there is no Linux, it cannot tell its starts apart."""

    def __init__(self, file: Path = _BOOT_ID) -> None:
        self._file = file

    def boot_id(self) -> str | None:
        try:
            return self._file.read_text("ascii").strip() or None
        except (OSError, ValueError):
            return None
