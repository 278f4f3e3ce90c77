"""Isolation of a consumer: the offsets that it may see, its lag, and the state of a reader.

The levels are those of ``docs/vocabulary.md``, which also compares them with Fluvio's (there,
COMMITTED is the data of all followers) and Kafka's.

Invariant: ``log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset``.

**The state of a reader.** A reader is a named query, a named consumer, or a consumer group. All
views use :func:`state_of`, with the reader's session and its lag. Heartbeats renew the session
while the reader's process runs, and a reader that is closed records its end. So a crash is a
session that expired without a recorded end. A slow reader and a reader between two runs look
different. A heartbeat also has the time since the program last requested records. This time
separates a reader that hangs from a slow one, and from one that requests records and gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Final

from msgspec import Struct

from spark_stream.consistency.ids import Offset
from spark_stream.structs import Positional


class Isolation(StrEnum):
    """The records that a consumer sees, or the time at which a producer's write counts as done."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_REPLICATED = "read_replicated"
    READ_COMMITTED = "read_committed"
    READ_ATOMIC = "read_atomic"


CONSUMER_LEVELS: Final = tuple(Isolation)
PRODUCER_LEVELS: Final = (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)


class Bounds(Positional):
    """The offsets that bound a partition's reads, as one consistent observation.

    ``atomic_cut`` is that of this partition alone (``consistency.partition.atomic_cuts``). None if
    it was not requested.
    """

    log_start_offset: Offset
    last_stable_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    atomic_cut: Offset | None = None

    def __post_init__(self) -> None:
        ordered = (
            0
            <= self.log_start_offset
            <= self.last_stable_offset
            <= self.high_watermark
            <= self.log_end_offset
        )
        if not ordered:
            raise ValueError(f"bounds out of order: {self}")


def _atomic(bounds: Bounds) -> Offset:
    if bounds.atomic_cut is None:
        raise ValueError("read_atomic: the bounds have no atomic cut")
    return max(bounds.log_start_offset, bounds.atomic_cut)


UPPER_BOUND: Final[Mapping[Isolation, Callable[[Bounds], Offset]]] = {
    Isolation.READ_UNCOMMITTED: attrgetter("log_end_offset"),
    Isolation.READ_REPLICATED: attrgetter("high_watermark"),
    Isolation.READ_COMMITTED: attrgetter("last_stable_offset"),
    Isolation.READ_ATOMIC: _atomic,
}

DROPS_ABORTED: Final = frozenset({Isolation.READ_COMMITTED, Isolation.READ_ATOMIC})


class VisibleRange(Struct, frozen=True):
    """Offsets ``start`` to ``end`` (exclusive), or empty when they are equal."""

    start: Offset
    end: Offset

    @property
    def count(self) -> int:
        return self.end - self.start


class OutOfRange(Struct, frozen=True):
    """The start is above the log end: no such record has existed here."""

    start: Offset
    log_end_offset: Offset


class Evicted(Struct, frozen=True):
    """The start is below the log start: retention removed those records."""

    start: Offset
    log_start_offset: Offset


def upper_bound(bounds: Bounds, isolation: Isolation) -> Offset:
    """Return the first offset that a consumer of this level may not read."""
    return UPPER_BOUND[isolation](bounds)


def visible_range(
    bounds: Bounds, isolation: Isolation, start: Offset, end: Offset | None = None
) -> VisibleRange | OutOfRange | Evicted:
    """Return the part of ``[start, end)`` that the level shows. ``end=None`` means no upper limit.

    A start between the level's bound and the log end gives an empty range, not an error. The reader
    waits, because these records exist and may become visible.
    """
    if start > bounds.log_end_offset:
        return OutOfRange(start, bounds.log_end_offset)
    if start < bounds.log_start_offset:
        return Evicted(start, bounds.log_start_offset)
    limit = upper_bound(bounds, isolation)
    if end is not None:
        limit = min(limit, end)
    return VisibleRange(start, max(start, limit))


# -- lag ------------------------------------------------------------------------------------------


class Lag(Struct, frozen=True):
    """The unread records of a reader in a partition.

    ``end``: the offset up to which they are counted. ``held_back``: those of them that its level
    does not return yet, because of an open transaction.
    """

    end: int
    records: int
    held_back: int

    @property
    def readable(self) -> int:
        """The records that the reader could read now."""
        return self.records - self.held_back


def lag_of(
    position: int,
    isolation: Isolation | None,
    log_end: int,
    high_watermark: int | None,
    last_stable: int | None,
) -> Lag | None:
    """Return the lag of a reader at this position, or None before its leader has a high watermark.

    It is counted up to the log end under read_uncommitted (and where the level is unknown), else up
    to the high watermark. For read_atomic the last stable offset stands for the cut, which is at or
    below it.
    """
    if isolation is None or isolation is Isolation.READ_UNCOMMITTED:
        return Lag(log_end, max(0, log_end - position), 0)
    if high_watermark is None or last_stable is None:
        return None
    held_back = 0
    if isolation in DROPS_ABORTED:
        held_back = max(0, high_watermark - max(position, last_stable))
    return Lag(high_watermark, max(0, high_watermark - position), held_back)


STALLED_S: Final = 120.0
"""A reader that has not requested records for so long, and has some to read, is stalled."""

HOLDS_S: Final = 60.0
"""A transaction that holds records back for so long is reported: a micro-batch may take as long."""


class ReaderState(StrEnum):
    """The state of a reader. Only *stalled* and *gone* need an operator."""

    RUNNING = "running"
    CATCHING_UP = "catching_up"
    WAITING_AT_LSO = "waiting_at_lso"
    STALLED = "stalled"
    STOPPED = "stopped"
    EMPTY = "empty"
    GONE = "gone"


class ReaderEnding(StrEnum):
    """The end of a reader's last run, or of a group's last member."""

    NONE = ""
    CLEAN = "clean"
    LOST = "lost"


def state_of(
    ending: ReaderEnding, members: int | None, idle_s: float, readable: int, held_back: int
) -> ReaderState:
    """Return the state of a reader.

    ``members``: the number in a group, None for a query or a consumer. ``idle_s``: the time since
    it last requested records. ``readable`` and ``held_back``: its lag, see ``isolation.lag_of``.
    """
    if members == 0:
        return ReaderState.GONE if ending is ReaderEnding.LOST else ReaderState.EMPTY
    if members is None and ending is not ReaderEnding.NONE:
        return ReaderState.GONE if ending is ReaderEnding.LOST else ReaderState.STOPPED
    if readable > 0:
        return ReaderState.STALLED if idle_s >= STALLED_S else ReaderState.CATCHING_UP
    return ReaderState.WAITING_AT_LSO if held_back > 0 else ReaderState.RUNNING
