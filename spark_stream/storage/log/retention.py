"""The times at which a log rolls, removes old segments and is flushed. No file is changed here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from spark_stream.consistency.entries import Kind, Table
from spark_stream.storage.settings import Flush, LogSettings


def rows_that_fit(
    rows: Table,
    settings: LogSettings,
    *,
    entries: int,
    data_bytes: int,
    first_appended: int | None,
    has_record: bool,
) -> int:
    """Return the number of leading rows that fit into a segment before the next one begins.

    ``entries`` and ``data_bytes`` are the segment's size, ``first_appended`` is the time of its
    first append. Without a record it is never full: the next segment would have the same name.
    """
    if first_appended is None:
        first_appended = int(rows[0]["appended"])
    age_us = settings.segment_ms * 1000
    room = settings.segment_bytes - data_bytes >= int(rows["length"].sum())
    few = settings.segment_entries - entries >= len(rows)
    if room and few and int(rows["appended"].max()) - first_appended <= age_us:
        return len(rows)
    places = np.arange(len(rows))
    full = data_bytes + np.cumsum(rows["length"]) > settings.segment_bytes
    full |= entries + places >= settings.segment_entries
    full |= rows["appended"] - first_appended > age_us
    if not has_record:
        full &= np.cumsum(rows["count"]) > rows["count"]
    return int(full.argmax()) if full.any() else len(rows)


def rows_of_one_schema(rows: Table) -> tuple[Table, int | None]:
    """Return the leading rows of one schema, and that schema, or None if they have no batch."""
    batches = np.flatnonzero(rows["kind"] == Kind.DATA)
    if not len(batches):
        return rows, None
    schemas = rows["schema"][batches]
    others = np.flatnonzero(schemas != schemas[0])
    return rows[: batches[others[0]]] if len(others) else rows, int(schemas[0])


class SegmentFacts(Struct, frozen=True):
    """A closed segment's properties for retention. Times are in microseconds since the epoch."""

    size: int
    last_appended: int | None
    end_offset: int


def removable(
    closed: Sequence[SegmentFacts],
    active_size: int,
    settings: LogSettings,
    now: int,
    limit: int,
    trimmed: int = 0,
    tiered: int = 0,
) -> int:
    """Return the number of the oldest closed segments to remove, by trim, by age and by size.

    A segment is removed only as a whole, only after all older ones, and never if it has an offset
    at or above ``limit`` (the last stable offset). By size, the log keeps at least
    ``retention.bytes``. Below the offset ``trimmed`` no segment is kept. By ``local.retention.*``
    a segment is removed only below the offset ``tiered``, up to which tables have all records.
    """
    total = active_size + sum(segment.size for segment in closed)
    oldest_kept = None if settings.kept_ms < 0 else now - settings.kept_ms * 1000
    removed_by_policy = min(limit, tiered) if settings.needs_table else limit
    gone = 0
    for segment in closed:
        last = segment.last_appended
        too_old = oldest_kept is not None and (last is None or last < oldest_kept)
        too_much = 0 <= settings.kept_bytes <= total - segment.size
        by_policy = (too_old or too_much) and segment.end_offset <= removed_by_policy
        hidden = segment.end_offset <= min(limit, trimmed)
        if not (by_policy or hidden):
            break
        total -= segment.size
        gone += 1
    return gone


def is_too_old(settings: LogSettings, last: int | None, now: int) -> bool:
    """Return whether even the newest record, appended at ``last``, is past its retention."""
    return 0 <= settings.kept_ms * 1000 < now - last if last is not None else False


def due_by_age(
    settings: LogSettings, first: int | None, last: int | None, oldest: int | None
) -> int | None:
    """Return the time of the next roll or removal because of age, or None without one.

    ``first`` and ``last`` are the first and the last append to the active segment, None while it
    has no record. ``oldest`` is the last append to the oldest closed one. Times are in
    microseconds.
    """
    ends = [] if first is None else [first + settings.segment_ms * 1000]
    if settings.kept_ms >= 0:
        retained = settings.kept_ms * 1000
        ends += [each + retained for each in (last, oldest) if each is not None]
    return min(ends) + 1 if ends else None


class FlushTimer:
    """The timer of one log's flushes. Times are seconds of one monotonic clock.

    The first call starts the timer: entries appended before it are flushed after one interval.
    """

    def __init__(self) -> None:
        self._started: float | None = None

    def next_due(self, settings: LogSettings, now: float) -> float | None:
        """Return the time of the next flush, or None if the topic has no interval."""
        if settings.flush is not Flush.INTERVAL:
            return None
        if self._started is None:
            self._started = now
        return self._started + settings.flush_ms / 1000

    def take_due(self, settings: LogSettings, now: float) -> bool:
        """Return whether a flush is due. If so, start the next interval."""
        due = self.next_due(settings, now)
        if due is None or due > now:
            return False
        self._started = now
        return True
