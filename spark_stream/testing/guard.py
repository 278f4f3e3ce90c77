"""A process that kills a test's processes as soon as the test's process ends, even by SIGKILL.

It runs this file as a program, and reads lines with a process id and the process's start time from
its standard input. The system closes that input when the test's process ends. A process cannot do
this for itself: a paused one (SIGSTOP) reads nothing. ``prctl(PR_SET_PDEATHSIG)`` depends on the
thread that started the process, and threads of tests end earlier than their processes.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_lock = threading.Lock()
_guards: dict[int, subprocess.Popen[str]] = {}
"""The guard of this process, by the id of this process: a forked child has its own."""


def kill_with_this_process(pid: int) -> None:
    """Have the process killed when the calling process ends."""
    with _lock:
        guard = _guards.get(os.getpid())
        if guard is None or guard.poll() is not None:
            guard = _guards[os.getpid()] = _start()
        assert guard.stdin is not None
        guard.stdin.write(f"{pid} {start_time(pid)}\n")
        guard.stdin.flush()


def start_time(pid: int) -> str:
    """Return the process's start time, which tells it from later ones of its id, or ""."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _start() -> subprocess.Popen[str]:
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C does not reach it
    )
    atexit.register(_end, guard, os.getpid())
    return guard


def _end(guard: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() != owner or guard.stdin is None:
        return
    guard.stdin.close()
    guard.wait()


def main() -> None:
    """Wait for the end of the input, then kill its processes."""
    guarded = [line.split() for line in sys.stdin]
    for pid, *started in guarded:
        if started == [start_time(int(pid))]:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
