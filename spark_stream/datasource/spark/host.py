"""This process: its host, the JVM above it, and which of Spark's Python workers it is.

Spark makes a data source, its readers and its writers anew in each kind of worker, and does not
tell them what for. But each kind of worker runs a module of its own, and does nothing else.
"""

from __future__ import annotations

import sys
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


PUSHES_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""Asks a batch reader for the filters that it takes."""
COMMITS: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""Commits or aborts a micro-batch that was planned, and written, elsewhere."""

READS_STREAMS: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""Plans the micro-batches of one source of a streaming query, as long as that runs."""


def is_worker(module: str) -> bool:
    """Return whether this process is a worker that runs the module."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return module in sys.modules or (main is not None and main.name == module)
