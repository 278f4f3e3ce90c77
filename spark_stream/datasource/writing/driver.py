"""Which driver planned a micro-batch, and when: so that it can give the batch up.

Spark tells a sink's ``abort`` the batch id and the messages of the tasks that had ended, perhaps
none, but neither query nor run. But planning, commit and abort all run in Python processes that the
driver's JVM has started, and a checkpoint has one query in it. So JVM and checkpoint name the run,
and a clock that all processes of the host share tells which plans are given up: a later run of the
same query in the same JVM plans later.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from functools import lru_cache
from typing import Final

import psutil
from msgspec import Struct

from spark_stream.datasource.spark.host import driver_jvm, this_host


class Plan(Struct, frozen=True):
    """The driver that planned a batch (empty: not known), and when, by that driver's clock."""

    run: str = ""
    planned: int = 0


NO_PLAN: Final = Plan()


def plan_of(checkpoint: str | None) -> Plan:
    """Make a plan in this process. An abort makes one too, and gives up the run's earlier ones."""
    run = "" if checkpoint is None else _run(os.getpid(), checkpoint)
    return Plan(run, time.monotonic_ns())


@lru_cache(maxsize=256)
def _run(process: int, checkpoint: str) -> str:
    """Return a text that is the same in all Python processes of one JVM, and in no other's.

    ``process`` is the id of this process: a fork must not get its parent's cached text.
    """
    java = _java()
    if java is None:
        return ""
    # The clock of a plan counts from the start of the host, and begins anew with it.
    host = this_host() or str(int(psutil.boot_time()))
    parts = (socket.gethostname(), host, str(java), checkpoint)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _java() -> int | None:
    """Return the process id of the driver's JVM; None if none can be seen."""
    try:
        jvm = driver_jvm()
    except psutil.Error:
        return None
    return None if jvm is None else jvm.pid
