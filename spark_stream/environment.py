"""The environment of a broker: time, unique names, its machine and its release.

Code that takes these as arguments also runs in the simulator. Deadlines, timeouts and leases use
``monotonic``. Ages of stored data use ``steady_us``. The wall clock is only for output to people
and for the timestamps of records.
"""

from __future__ import annotations

import time
import uuid
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from spark_stream.operating_system import boot_id


class Clock(Protocol):
    """The clocks of a process."""

    def monotonic(self) -> float:
        """Return seconds since some moment. Never steps, and means nothing to another process."""

    def steady_us(self) -> int:
        """Return microseconds since the epoch. Does not step while the process lives."""

    def wall_us(self) -> int:
        """Return microseconds since the epoch by the host's clock. May step either way."""


class Ids(Protocol):
    """A source of unique names."""

    def new_id(self) -> str:
        """Return 32 hexadecimal digits that are unique."""


class Machine(Protocol):
    """The machine whose kernel keeps the writes of a process."""

    def boot_id(self) -> str | None:
        """Return an id of the current boot, or None: then any start may follow a reboot."""


class SystemClock:
    """The host's clocks. The steady time starts at the wall clock and then advances by itself."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def steady_us(self) -> int:
        return (self._offset_ns + time.monotonic_ns()) // 1_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000


class SystemIds:
    """Random names."""

    def new_id(self) -> str:
        return uuid.uuid4().hex


class SystemMachine:
    """The host."""

    def boot_id(self) -> str | None:
        return boot_id()


try:
    VERSION = version("isolog")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0+checkout"
