"""How many stored bytes lie between two offsets, and how far so many bytes reach.

A batch is stored as a whole; of its bytes each record is taken to have the same part, rounded so
that the parts of all add up. What records of aborted transactions take counts as well: it is read,
and limits count it. A marker takes no bytes.

The functions take the entries tables of a log, oldest first. Offsets outside of them have no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_stream.consistency.entries import Table, at_offset, next_offset
from spark_stream.consistency.ids import Offset


def stored_bytes(tables: Sequence[Table], start: int, end: int) -> int:
    """The stored bytes of the records ``[start, end)``."""
    return sum(
        _bytes_before(table, min(end, last)) - _bytes_before(table, max(start, first))
        for table, first, last in _within(tables, start, end)
    )


def reached(tables: Sequence[Table], start: int, end: int, budget: int) -> Offset:
    """How far whole records, from ``start`` on and below ``end``, take at most ``budget`` bytes."""
    for table, first, last in _within(tables, start, end):
        before = _bytes_before(table, max(start, first))
        whole = _bytes_before(table, min(end, last)) - before
        if whole > budget:
            return Offset(_reached_within(table, before + budget))
        budget -= whole
    return Offset(max(start, end))


def _within(tables: Sequence[Table], start: int, end: int) -> list[tuple[Table, int, int]]:
    """The tables with records of ``[start, end)``, each with its first offset and its end."""
    found = []
    for table in tables:
        if len(table):
            first = int(table[0]["base_offset"])
            last = int(next_offset(table, Offset(first)))
            if first < min(end, last) and start < last:
                found.append((table, first, last))
    return found


def _bytes_before(table: Table, offset: int) -> int:
    """The bytes of the table's records below the offset, which is one of them or their end."""
    row = table[at_offset(table, offset)]
    within = min(offset - int(row["base_offset"]), int(row["count"]))
    part = int(row["length"]) * within // int(row["count"]) if row["count"] else 0
    return int(row["position"]) - int(table[0]["position"]) + part


def _reached_within(table: Table, budget: int) -> int:
    """The greatest offset of the table before which there are at most so many bytes."""
    ends = table["position"] + table["length"] - int(table[0]["position"])
    row = table[int(ends.searchsorted(budget, side="right"))]  # the first that does not fit whole
    left = budget - (int(row["position"]) - int(table[0]["position"]))
    within = ((left + 1) * int(row["count"]) - 1) // int(row["length"])
    return int(row["base_offset"]) + within
