"""Records about runs of queries whose driver has given a batch up.

A record has the time up to which the run's plans are given up. It is kept as long as a task planned
before that time may still start.
"""

from __future__ import annotations

from typing import Final

from spark_stream.consistency.transactions.sinks import Stop
from spark_stream.scripts.steps import DeleteRecord, Get, ListRecords, PutRecord, Script

STOPPED: Final = "stopped/"
STOPPED_KEPT_MS: Final = 24 * 3_600_000


def stopped_until(run: str) -> Script[int]:
    """Return the time up to which the run's plans are given up; -1 if none are."""
    record = yield from Get(STOPPED + run)
    return -1 if record is None else int(record.value["planned"])


def record_stop(asked: Stop, now_ms: int) -> Script[None]:
    """Record that the run's plans up to that time are given up."""
    while True:
        record = yield from Get(STOPPED + asked.run)
        if record is not None and int(record.value["planned"]) >= asked.planned:
            return
        value = {"planned": asked.planned, "at_ms": now_ms}
        version = 0 if record is None else record.version
        if (yield from PutRecord(STOPPED + asked.run, value, version)):
            return


def forget_stopped(now_ms: int) -> Script[None]:
    """Forget runs that were stopped long ago."""
    for old in (yield from ListRecords(STOPPED)):
        if now_ms - int(old.value["at_ms"]) > STOPPED_KEPT_MS:
            yield from DeleteRecord(old.key, old.version)
