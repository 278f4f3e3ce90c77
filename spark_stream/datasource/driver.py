"""Which driver planned a micro-batch, and when: so that it can give the batch up.

Spark tells a sink's ``abort`` the batch id and the messages of the tasks that had ended, perhaps
none; neither query nor run. But planning, commit and abort all run in Python processes that the
driver's JVM has started, and a checkpoint has one query in it. So JVM and checkpoint name the run,
and a clock that all processes of the host share says which plans are the given-up ones: a later
run of the same query in the same JVM plans later.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import psutil

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Plan:
    """By which driver a batch was planned (empty: it is not known), and when on its clock."""

    run: str = ""
    planned: int = 0


NO_PLAN: Final = Plan()


def plan_of(checkpoint: str | None) -> Plan:
    """A plan that this process makes now; also what an abort gives up: all until now."""
    run = "" if checkpoint is None else _run(os.getpid(), checkpoint)
    return Plan(run, time.monotonic_ns())


@lru_cache(maxsize=256)
def _run(process: int, checkpoint: str) -> str:
    """The same text in all Python processes of one JVM, and in no other's."""
    java = _java(process)
    if java is None:
        return ""
    parts = (socket.gethostname(), _boot(), str(java), checkpoint)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _java(process: int) -> int | None:
    """The process id of the nearest JVM above; None where there is none to be seen."""
    try:
        for parent in psutil.Process(process).parents():
            if parent.name().startswith("java"):
                return parent.pid
    except psutil.Error:
        return None
    return None


def _boot() -> str:
    """What the clock counts from: it begins anew with the host."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))
