"""The limits of micro-batches and of tasks: the end of a micro-batch, and its division into tasks.

*Micro-batches* have at least so many records, and at most so many records and bytes. All limits
hold together. A query waits for the minimum, but no longer than ``max_delay_s`` from the time when
it saw the first pending record. Spark's own read limits can express less: there are no two of them
together, and no delay (``docs/spark/read.md``). A limit is shared out over the partitions by their
backlogs. A batch that is planned again has to come out the same. So the turn of a partition depends
only on the number of records that the query has read before.

*Tasks.* A task costs Spark 10 to 20 ms, however little it reads. So ranges of few records share a
task, and an option can split large ones. A micro-batch that is replayed must have the same tasks,
or ``rand(7)`` in ``foreachBatch`` gives other values. So they depend on its offsets and on options
only, not on leaders or on other topics.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.datasource.values.offsets import Offsets, Range, TopicOffsets, ranges

K = TypeVar("K")
Place = tuple[str, int]
"""A topic and a partition."""

Task = tuple[Range, ...]
MAX_DELAY_DEFAULT_S: Final = 900.0

SHARED_RECORDS: Final = 50_000
"""Up to this many records ranges share a task: a worker reads them in about its start time.

A release that changes it changes the tasks of micro-batches that are replayed after an upgrade.
"""


class Limits(Struct, frozen=True):
    """The limits of a streaming query's micro-batch. None: no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = MAX_DELAY_DEFAULT_S

    @property
    def any(self) -> bool:
        """Whether any field limits a micro-batch. Otherwise Spark gets ``ReadAllAvailable``."""
        return replace(self, max_delay_s=MAX_DELAY_DEFAULT_S) != Limits()


class RangeSizes(Protocol):
    """The source of the stored sizes of records (:class:`Planner`)."""

    def sizes(self, asked: list[Range]) -> Mapping[Place, tuple[int, int]]:
        """Return the stored bytes of each range, and those of its first record."""
        ...

    def reached(self, asked: list[Range], budgets: Mapping[Place, int]) -> Mapping[Place, int]:
        """Return the end of the whole records of each range within its budget of bytes."""
        ...


class BatchLimiter:
    """The limits of one query, with the time since which records are pending."""

    def __init__(self, limits: Limits, measure: RangeSizes, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._measure = measure
        self._monotonic = monotonic
        self._waiting_since: float | None = None

    def awaits_more(self, begin: Offsets, ends: Offsets) -> bool:
        """Return whether there are too few records yet, and the query may wait longer."""
        least = self._limits.min_offsets
        waiting = sum(each.end - each.start for each in ranges(begin, ends))
        if least is None or waiting >= least or not waiting:
            self._waiting_since = None
            return False
        now = self._monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._limits.max_delay_s:
            return True
        self._waiting_since = None
        return False

    def limited(self, begin: Offsets, ends: Offsets) -> dict[str, TopicOffsets]:
        """Lower the ends to what a micro-batch may take."""
        found = dict(ends)
        if self._limits.max_offsets is not None:
            found = limited_records(begin, found, self._limits.max_offsets)
        if self._limits.max_bytes is not None:
            found = self._limited_bytes(begin, found, self._limits.max_bytes)
        return found

    def _limited_bytes(
        self, begin: Offsets, ends: dict[str, TopicOffsets], limit: int
    ) -> dict[str, TopicOffsets]:
        asked = list(ranges(begin, ends))
        sizes = self._measure.sizes(asked)
        if sum(size for size, _ in sizes.values()) <= limit:
            return ends
        budgets = share_bytes(sizes, limit, _read_before(begin))
        reached = self._measure.reached(asked, budgets)
        return {
            name: topic.moved(
                {number: reached.get((name, number), end) for number, end in topic.offsets.items()}
            )
            for name, topic in ends.items()
        }


def limited_records(begin: Offsets, ends: Offsets, limit: int) -> dict[str, TopicOffsets]:
    """Lower the ends, so that at most ``limit`` records lie before them."""
    backlog = {
        (name, number): 0 for name, topic in sorted(ends.items()) for number in topic.offsets
    }
    for each in ranges(begin, ends):
        backlog[each.topic, each.partition] = each.end - each.start
    taken = share_records(backlog, limit, turn=_read_before(begin))
    return {
        name: topic.moved(
            {
                number: end - backlog[name, number] + taken[name, number]
                for number, end in topic.offsets.items()
            }
        )
        for name, topic in ends.items()
    }


def _read_before(begin: Offsets) -> int:
    """Sum the records that a query at these offsets has read, if it began at 0."""
    return sum(sum(topic.offsets.values()) for topic in begin.values())


class Splitting(Struct, frozen=True):
    """The minimum number of tasks, and the maximum number of records in each."""

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
        wanted = share_records(dict(enumerate(each.end - each.start for each in pieces)), least)
        pieces = [piece for n, each in enumerate(pieces) for piece in _cut(each, wanted[n])]
    shared = list(_shared(pieces, min(SHARED_RECORDS, splitting.max_records or SHARED_RECORDS)))
    return shared if len(shared) >= least else [(piece,) for piece in pieces]


def _cut(whole: Range, parts: int) -> list[Range]:
    """Cut the range into this many parts, which differ by one record at most.

    Each keeps the lineage of the whole's end, which covers the records before it too.
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


def share_records(backlog: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Share ``limit`` out over the partitions: the records of each, or the backlog if that is less.

    Every partition with a backlog gets at least one record, and more in proportion. The remainder
    goes to the largest fractions. If the limit is too small for that, partitions take turns.

    ``backlog`` has all partitions, also those without a backlog, always in the same order. ``turn``
    is the number of records that were read before from all of them. So a batch that is planned
    again comes out the same, and each of n partitions has its turn within n / limit batches,
    rounded up.
    """
    if sum(backlog.values()) <= limit:
        return dict(backlog)
    waiting = sum(1 for size in backlog.values() if size)
    return _in_turn(backlog, limit, turn) if waiting > limit else _in_proportion(backlog, limit)


def _in_turn(backlog: Mapping[K, int], limit: int, turn: int) -> dict[K, int]:
    """Take one record from each of ``limit`` partitions with a backlog, beginning at the turn.

    Each such batch moves the turn on by the limit, so every partition has its turn.
    """
    keys = list(backlog)
    first = turn % len(keys)
    waiting = [key for key in (*keys[first:], *keys[:first]) if backlog[key]]
    return dict.fromkeys(backlog, 0) | dict.fromkeys(waiting[:limit], 1)


def _in_proportion(backlog: Mapping[K, int], limit: int) -> dict[K, int]:
    taken = dict.fromkeys(backlog, 0)
    sizes = {key: size for key, size in backlog.items() if size}
    left, total = limit, sum(sizes.values())
    # A partition with a share below one record gets one. That leaves less for the others, so their
    # shares are computed again.
    while small := [key for key, size in sizes.items() if size * left < total]:
        for key in small:
            taken[key] = 1
            total -= sizes.pop(key)
        left -= len(small)
    exact = {key: divmod(size * left, total) for key, size in sizes.items()}
    taken |= {key: whole for key, (whole, _) in exact.items()}
    left = limit - sum(taken.values())
    by_remainder = sorted(exact, key=lambda key: exact[key][1], reverse=True)
    for key in by_remainder[:left]:
        taken[key] += 1
    return taken


def share_bytes(backlog: Mapping[K, tuple[int, int]], limit: int, turn: int = 0) -> dict[K, int]:
    """Share ``limit`` bytes out over the partitions, or the backlog if that is less.

    ``backlog`` has the bytes of each partition's records, and those of its first record. ``turn``
    is the number of records that were read before. As many partitions as possible get their first
    record, and the rest is shared out in proportion. The first in turn always gets its first
    record, even if that alone is larger than the limit: so a query gets past every record.
    """
    if sum(size for size, _ in backlog.values()) <= limit:
        return {key: size for key, (size, _) in backlog.items()}
    keys = [key for key, (size, _) in backlog.items() if size]
    # Not turn % len(keys): if every batch has the same number of records, that may always be the
    # same partition.
    at = random.Random(turn).randrange(len(keys))
    given = dict.fromkeys(backlog, 0)
    left = limit
    for place, key in enumerate((*keys[at:], *keys[:at])):
        first = backlog[key][1]
        if first <= left or place == 0:
            given[key] = first
            left -= first
    beyond = {key: backlog[key][0] - first for key, first in given.items() if first}
    if left > 0:
        for key, share in share_records(beyond, left).items():
            given[key] += share
    return given
