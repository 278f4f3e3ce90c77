"""When the active segment takes no more. No file is touched here."""

from __future__ import annotations

import numpy as np

from spark_stream.consistency.entries import Kind, Table
from spark_stream.storage.settings import LogSettings


def rows_that_fit(
    rows: Table,
    settings: LogSettings,
    *,
    entries: int,
    data_bytes: int,
    first_appended: int | None,
    has_record: bool,
) -> int:
    """Return how many leading rows go into a segment before the next one begins.

    The segment has so many ``entries`` and ``data_bytes``; ``first_appended`` is when its first
    entry came. Without a record it is never full: the next segment would have the same name.
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
    """Return the leading rows of one schema and that schema, None if they have no batch."""
    batches = np.flatnonzero(rows["kind"] == Kind.DATA)
    if not len(batches):
        return rows, None
    schemas = rows["schema"][batches]
    others = np.flatnonzero(schemas != schemas[0])
    return rows[: batches[others[0]]] if len(others) else rows, int(schemas[0])
