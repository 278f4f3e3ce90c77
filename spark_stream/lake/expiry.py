"""The expiry of old versions, and of files that a merge or retention has replaced.

The durations are properties of each table, with the names and defaults of Delta:
``delta.logRetentionDuration`` for versions, ``delta.deletedFileRetentionDuration`` for files.

**Order.** A version is removed only after a floor above it is durable (``versions.py``). The floor
is a version with a checkpoint of isolog, older than the duration. So each version that was the last
one within the duration can be read. isolog's tables have ``delta.enableExpiredLogCleanup=false``:
other programs remove versions without a floor.

Removals are not part of a round. An error in one ends it, and a later one continues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from spark_stream.lake.delta.table import Table
from spark_stream.lake.steps import (
    CHECKPOINT,
    VERSION,
    DeleteFiles,
    ListLog,
    LogFile,
    Now,
    PutFloor,
    ReadCheckpoint,
    ReadFloor,
    ReadVersion,
    Script,
)
from spark_stream.lake.versions import catch_up, confirm

DAY_MS: Final = 86_400_000
LOG_RETENTION: Final = "delta.logRetentionDuration"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_RETENTION_MS: Final = 30 * DAY_MS
FILE_RETENTION_MS: Final = 7 * DAY_MS
_BATCH: Final = 10
"""A fraction of the duration: versions are listed and removed after each such part of it."""
_UNITS_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": DAY_MS,
    "week": 7 * DAY_MS,
}
_PART: Final = re.compile(r"\s*(\d+)\s+([a-z]+?)s?\b", re.IGNORECASE)


def duration_ms(table: Table, name: str, default_ms: int) -> int:
    """Return a duration in a table's properties (``interval 30 days``), or the default."""
    text = "" if table.metadata is None else table.metadata.configuration.get(name, "")
    text = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    parts = _PART.findall(text)
    if (
        not parts
        or _PART.sub("", text).strip()
        or any(unit.lower() not in _UNITS_MS for _, unit in parts)
    ):
        return default_ms
    return sum(int(number) * _UNITS_MS[unit.lower()] for number, unit in parts)


def retention_properties(version_ms: int | None, file_ms: int | None) -> dict[str, str]:
    """Return the properties of a table with these durations, without those that are None."""
    given = {LOG_RETENTION: version_ms, FILE_RETENTION: file_ms}
    return {name: _interval(ms) for name, ms in given.items() if ms is not None}


def _interval(ms: int) -> str:
    unit = next(
        each
        for each in ("day", "hour", "minute", "second", "millisecond")
        if ms % _UNITS_MS[each] == 0
    )
    return f"interval {ms // _UNITS_MS[unit]} {unit}s"


def expire_table(table: Table, due_ms: dict[str, int]) -> Script[int]:
    """Remove expired versions and files of a table. Return the number of removed files.

    ``due_ms``: by table, the time of the next removal of versions. It is updated.

    Raises:
        LakeStopped: A file of the table is missing, such as one that should replace removed ones.
    """
    yield from catch_up(table)
    if table.version < 0:
        return 0
    yield from confirm(table)
    now_ms = yield from Now()
    removed = yield from _expire_files(table, now_ms)
    if table.at not in due_ms:
        due_ms[table.at] = yield from _next_due(table)
    if now_ms >= due_ms[table.at]:
        removed += yield from _expire_versions(table, now_ms)
        due_ms[table.at] = max(
            (yield from _next_due(table)),
            now_ms + duration_ms(table, LOG_RETENTION, LOG_RETENTION_MS) // _BATCH,
        )
    return removed


def _expire_files(table: Table, now_ms: int) -> Script[int]:
    limit_ms = now_ms - duration_ms(table, FILE_RETENTION, FILE_RETENTION_MS)
    old = [
        each.path
        for each in table.removed.values()
        if (each.deletion_timestamp or 0) < limit_ms and _is_inside(each.path)
    ]
    if old:
        yield from DeleteFiles(table.at, old)
        for path in old:
            del table.removed[path]
    return len(old)


def _is_inside(path: str) -> bool:
    """Return whether a path is inside the folder of its table. A clone has others."""
    return ":" not in path and not path.startswith("/") and ".." not in path.split("/")


def _next_due(table: Table) -> Script[int]:
    """Return the time at which the oldest version has expired, and a part of the others."""
    actions = yield from ReadVersion(table.at, (yield from ReadFloor(table.at)))
    infos = [each.commit_info for each in actions or () if each.commit_info is not None]
    oldest_ms = max((each.timestamp or 0 for each in infos), default=0)
    kept_ms = duration_ms(table, LOG_RETENTION, LOG_RETENTION_MS)
    return oldest_ms + kept_ms + kept_ms // _BATCH


def _expire_versions(table: Table, now_ms: int) -> Script[int]:
    files = yield from ListLog(table.at)
    now_ms = earlier(now_ms, files)
    limit_ms = now_ms - duration_ms(table, LOG_RETENTION, LOG_RETENTION_MS)
    for version in possible_floors(files, limit_ms):
        if (yield from ReadCheckpoint(table.at, version)) is None:
            continue  # another program's
        yield from PutFloor(table.at, version)
        # In order, so that a reader without the floor does not find a part of the versions.
        old = sorted((each.version, each.path) for each in files if each.version < version)
        if old:
            yield from DeleteFiles(table.at, [path for _, path in old])
        return len(old)
    return 0


class Modified(Protocol):
    """A file with the time of its last change, in milliseconds since 1970."""

    @property
    def modified_ms(self) -> int:
        """The time of the last change."""


def earlier(now_ms: int, files: Iterable[Modified]) -> int:
    """Return the present or the time of the latest file: a clock ahead makes no file old."""
    return min(now_ms, max((each.modified_ms for each in files), default=now_ms))


def possible_floors(files: Iterable[LogFile], limit_ms: int) -> list[int]:
    """Return the versions with checkpoints that are older than the limit, the last one first."""
    files = list(files)
    checkpoints = {each.version for each in files if each.kind == CHECKPOINT}
    old = {each.version for each in files if each.kind == VERSION and each.modified_ms < limit_ms}
    return sorted(checkpoints & old, reverse=True)
