"""The clock that all figures are taken by: the wall's, or the processor time that was used.

On a machine that others use as well, processor time tells two commits apart where the wall's
time tells the neighbours. It leaves out what is waited for, such as disks and locks.
"""

from __future__ import annotations

import time

_processes: list[int] = []


def now() -> float:
    """Seconds since some moment; differences count."""
    if not _processes:
        return time.perf_counter()
    return sum(time.clock_gettime(_clock_of(process)) for process in _processes)


def count_processor_time(*processes: int) -> None:
    """From now on the clock goes on as these processes, which must live, use processors."""
    _processes[:] = processes


def _clock_of(process: int) -> int:
    return (~process << 3) | 2  # Linux's number for the clock of a process; clock_getcpuclockid(3)
