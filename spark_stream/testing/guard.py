"""A guard process that kills the processes of a test when the test process ends, even by SIGKILL.

The guard runs this file as a program. It reads lines with a process id and the start time of the
process from its standard input, which the system closes when the test process ends. Guarded
processes cannot do this themselves, because a paused process (SIGSTOP) reads no input.
``prctl(PR_SET_PDEATHSIG)`` depends on the thread that started the process, and threads of tests end
earlier than their processes.
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
"""The guard of this process by the id of this process, because a forked child needs another."""


def kill_with_this_process(pid: int) -> None:
    """Register the process to be killed when the calling process ends."""
    with _lock:
        guard = _guards.get(os.getpid())
        if guard is None or guard.poll() is not None:
            guard = _guards[os.getpid()] = _start()
        assert guard.stdin is not None
        guard.stdin.write(f"{pid} {start_time(pid)}\n")
        guard.stdin.flush()


def start_time(pid: int) -> str:
    """Return the start time of the process, or "". Another process may have its id later."""
    if os.environ.get("ISOLOG_PORTABLE") != "1":  # the guard imports nothing of isolog
        with suppress(OSError), open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    # Without /proc: macOS has it in the table of processes only, to the second.
    with suppress(OSError):
        found = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True
        )
        return "".join(found.stdout.split())
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
    """Wait for the end of the input, then kill the processes in it."""
    guarded = [line.split() for line in sys.stdin]
    for pid, *started in guarded:
        if started == [start_time(int(pid))]:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
