"""The records of a test in the log."""

from __future__ import annotations

import isolog


def found(log: isolog.Log, topic: str, isolation: str = "read_committed") -> list[int]:
    """Return the visible values, in the order of partitions and offsets."""
    return [int(value.as_py()) for value in log.read(topic, isolation=isolation)["value"]]


def entries(log: isolog.Log, topic: str) -> int:
    return sum(each.log_end_offset for each in log.describe(topic).partitions)
