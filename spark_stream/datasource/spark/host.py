"""This process's host, and the JVM of Spark's driver among the processes above it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_host() -> str | None:
    """Return what tells this host from others until it reboots; None if the system has nothing."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def driver_jvm() -> psutil.Process | None:
    """Find the JVM that started this planner or task, directly or not; None if there is none.

    Raises:
        psutil.Error: the system does not tell.
    """
    for process in psutil.Process().parents():
        if process.name().startswith("java"):
            return process
    return None
