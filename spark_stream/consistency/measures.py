"""How many stored bytes lie between two offsets, and which offset a number of bytes reaches.

A batch is stored as a whole. Its bytes are shared out evenly among its records, rounded so that the
shares add up to the batch. Records of aborted transactions count too: they are read, and limits
count them. A marker takes no bytes.

The functions take the entries tables of a log, oldest first. Offsets outside of them have no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_stream.consistency.entries import Table, at_offset, next_offset
from spark_stream.consistency.ids import Offset


def stored_bytes(tables: Sequence[Table], start: int, end: int) -> int:
    """Return the stored bytes of the records ``[start, end)``."""
    return sum(
        _bytes_before(table, min(end, last)) - _bytes_before(table, max(start, first))
        for table, first, last in _within(tables, start, end)
    )


def reached(tables: Sequence[Table], start: int, end: int, budget: int) -> Offset:
    """Return the offset up to which records from ``start`` take at most ``budget`` bytes.

    It is at most ``end``. Only whole records count.
    """
    for table, first, last in _within(tables, start, end):
        before = _bytes_before(table, max(start, first))
        whole = _bytes_before(table, min(end, last)) - before
        if whole > budget:
            return Offset(_reached_within(table, before + budget))
        budget -= whole
    return Offset(max(start, end))


def _within(tables: Sequence[Table], start: int, end: int) -> list[tuple[Table, int, int]]:
    """Return the tables with records of ``[start, end)``, with the first offset and end of each."""
    found = []
    for table in tables:
        if len(table):
            first = int(table[0]["base_offset"])
            last = int(next_offset(table, Offset(first)))
            if first < min(end, last) and start < last:
                found.append((table, first, last))
    return found


def _bytes_before(table: Table, offset: int) -> int:
    """Return the bytes of the table's records below ``offset``, one of its offsets or their end."""
    row = table[at_offset(table, offset)]
    within = min(offset - int(row["base_offset"]), int(row["count"]))
    part = int(row["length"]) * within // int(row["count"]) if row["count"] else 0
    return int(row["position"]) - int(table[0]["position"]) + part


def _reached_within(table: Table, budget: int) -> int:
    """Return the table's greatest offset that has at most ``budget`` bytes before it."""
    ends = table["position"] + table["length"] - int(table[0]["position"])
    row = table[int(ends.searchsorted(budget, side="right"))]  # the first batch that does not fit
    left = budget - (int(row["position"]) - int(table[0]["position"]))
    within = ((left + 1) * int(row["count"]) - 1) // int(row["length"])
    return int(row["base_offset"]) + within
