"""The statistics of a table's file: the least and the greatest values of its columns."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from spark_stream.lake.delta.actions import AddFile
from spark_stream.lake.delta.schema import OFFSET, PARTITION
from spark_stream.structs import INT64_MAX

Interval = tuple[int, int]
"""A first and a last value, inclusive."""

ANY: Final = (-INT64_MAX, INT64_MAX)
"""The interval of unknown values."""


def statistics(file: AddFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the least and the greatest values of a file's columns. Empty if they are unknown."""
    try:
        found = json.loads(file.stats or "{}")
        return found["minValues"], found["maxValues"]
    except (ValueError, KeyError, TypeError):
        return {}, {}


def newest(file: AddFile, column: str) -> datetime | None:
    """Return the greatest time in a column of a file, or None if it is unknown."""
    text = statistics(file)[1].get(column)
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def record_count(file: AddFile) -> int:
    """Return the number of records in a file, 0 if it is unknown."""
    try:
        return int(json.loads(file.stats or "{}")["numRecords"])
    except (ValueError, KeyError, TypeError):
        return 0


def bounds(file: AddFile) -> tuple[Interval, Interval]:
    """Return the intervals of a file's partitions and offsets, ``ANY`` if they are unknown."""
    least, most = statistics(file)

    def of(column: str) -> Interval:
        low, high = least.get(column), most.get(column)
        return (low, high) if isinstance(low, int) and isinstance(high, int) else ANY

    return of(PARTITION), of(OFFSET)
