"""The processes of Spark that run Python tasks."""

from __future__ import annotations

import psutil


def python_workers(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the Python workers among processes of Spark: the children of Spark's daemon."""
    daemons = [each for each in processes if "pyspark.daemon" in _words(each)]
    pids = {each.pid for each in daemons}
    return [each for each in daemons if _parent(each) in pids]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return -1
