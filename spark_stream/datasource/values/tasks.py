"""Which ranges a Spark task reads: large ones are split where that is asked for, small ones shared.

A task costs Spark 10 to 20 ms, whatever it reads. So ranges of few records share a task.

A micro-batch that is replayed must have the same tasks, or ``rand(7)`` in ``foreachBatch`` gives
other values. So they depend on its offsets and on options only, not on leaders or on other topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.datasource.values.offsets import Range
from spark_stream.datasource.values.sharing import shared_out

SHARED_RECORDS: Final = 50_000
"""Up to this many records ranges share a task: a worker reads them in about its start time.

A release that changes it changes the tasks of micro-batches that are replayed after an upgrade.
"""

Task = tuple[Range, ...]


class Splitting(Struct, frozen=True):
    """What was asked for: at least so many tasks, and at most so many records in each."""

    min_partitions: int | None = None
    max_records: int | None = None


def tasks(asked: Iterable[Range], splitting: Splitting) -> list[Task]:
    """Return the tasks that read the ranges: each record once, in the order of its partition.

    There are at least ``min_partitions`` tasks if there are as many records, split in proportion to
    the sizes of the ranges.
    """
    pieces = list(asked)
    if splitting.max_records is not None:
        most = splitting.max_records
        pieces = [
            piece for each in pieces for piece in _cut(each, -(-(each.end - each.start) // most))
        ]
    least = splitting.min_partitions or 1
    if len(pieces) < least:
        wanted = shared_out(dict(enumerate(each.end - each.start for each in pieces)), least)
        pieces = [piece for n, each in enumerate(pieces) for piece in _cut(each, wanted[n])]
    shared = list(_shared(pieces, min(SHARED_RECORDS, splitting.max_records or SHARED_RECORDS)))
    return shared if len(shared) >= least else [(piece,) for piece in pieces]


def _cut(whole: Range, parts: int) -> list[Range]:
    """Cut the range into this many parts, which differ by one record at most.

    Each keeps the lineage of the whole's end: it tells of the records before that one as well.
    """
    size = whole.end - whole.start
    edges = [whole.start + size * n // parts for n in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def _shared(pieces: Sequence[Range], most: int) -> Iterable[Task]:
    """Return neighbouring pieces together, as long as they have at most so many records."""
    held: list[Range] = []
    size = 0
    for piece in pieces:
        records = piece.end - piece.start
        if held and size + records > most:
            yield tuple(held)
            held, size = [], 0
        held.append(piece)
        size += records
    if held:
        yield tuple(held)
