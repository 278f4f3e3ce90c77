"""How far a micro-batch goes: at least so many records, at most so many records and bytes.

All limits hold together. The least is waited for, but no longer than ``max_delay_s`` from when the
first of the records that wait was seen. Spark's own read limits can say less: there are no two of
them at once, and no delay (``docs/spark/read.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from spark_stream.datasource.values.offsets import Offsets, Range, TopicOffsets, ranges
from spark_stream.datasource.values.sharing import shared_bytes, shared_out

MAX_DELAY_DEFAULT_S: Final = 900.0


class Limits(Struct, frozen=True):
    """What a streaming query was asked to take of its backlog in a micro-batch, or None."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = MAX_DELAY_DEFAULT_S

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return any(
            each is not None for each in (self.max_offsets, self.max_bytes, self.min_offsets)
        )


Place = tuple[str, int]
"""A topic and a partition."""


class RangeSizes(Protocol):
    """Who knows how many bytes records take (:class:`Planner`)."""

    def sizes(self, asked: list[Range]) -> Mapping[Place, tuple[int, int]]:
        """Return the stored bytes of each range, and those of its first record."""
        ...

    def reached(self, asked: list[Range], budgets: Mapping[Place, int]) -> Mapping[Place, int]:
        """Return how far whole records of each range take no more than its budget of bytes."""
        ...


class Pace:
    """The limits of one query; it remembers since when records wait."""

    def __init__(self, limits: Limits, measure: RangeSizes, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._measure = measure
        self._monotonic = monotonic
        self._waiting_since: float | None = None

    def awaits_more(self, begin: Offsets, ends: Offsets) -> bool:
        """Return whether there is too little to read yet, and the query may wait longer."""
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
        budgets = shared_bytes(sizes, limit, _read_before(begin))
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
    taken = shared_out(backlog, limit, turn=_read_before(begin))
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
    """Return how many records a query at these offsets has read, if it began at 0."""
    return sum(sum(topic.offsets.values()) for topic in begin.values())
