"""A replica's effects, which its caller carries out after an event, and its waiters.

A waiter is a read or an append. The caller chooses its number. Reads wait for one of three bounds
to pass an offset, appends for their acknowledgement. Each waiter is named in one effect, once.

Invariant: every waiter here waits for an offset that its bound has not passed. So when a bound
moves, exactly those that it satisfies are at the front of the heap, and no other is touched.
"""

from __future__ import annotations

import heapq
from enum import Enum
from typing import Final

from msgspec import Struct

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.isolation import Bounds, Isolation


class WaitBound(Enum):
    """The bound that a reader waits for: one of the offsets that limit what it sees."""

    LOG_END = "log end offset"
    HIGH_WATERMARK = "high watermark"
    LAST_STABLE = "last stable offset"


BOUND_OF: Final = {
    Isolation.READ_UNCOMMITTED: WaitBound.LOG_END,
    Isolation.READ_REPLICATED: WaitBound.HIGH_WATERMARK,
    Isolation.READ_COMMITTED: WaitBound.LAST_STABLE,
    Isolation.READ_ATOMIC: WaitBound.LAST_STABLE,  # its cut moves only when that does
}


class Wake(Struct, frozen=True):
    """Wake these reads: their bounds have passed their offsets."""

    waiters: tuple[int, ...]


class Answer(Struct, frozen=True):
    """Acknowledge these appends: they have reached the isolation of their requests."""

    tickets: tuple[int, ...]


class Disown(Struct, frozen=True):
    """Refuse these appends: their records were truncated before the acknowledgement."""

    tickets: tuple[int, ...]


class Abandon(Struct, frozen=True):
    """Give up these appends: the replica ceased to lead before it could acknowledge them.

    The next leader keeps or truncates their records.
    """

    tickets: tuple[int, ...]


class ProposeIsr(Struct, frozen=True):
    """Put these members on the partition's record, by a compare-and-set on this version of it.

    Report the outcome by ``isr_changed`` or ``isr_refused``. If it is unknown, call neither.
    """

    members: tuple[Member, ...]
    version: int


class ProposeRecord(Struct, frozen=True):
    """Replace the record of this version by another one: the leader cannot lead by the old one."""

    me: Member
    before: PartitionRecord
    after: PartitionRecord
    version: int


class HighWatermarkMoved(Struct, frozen=True):
    """Send the leader's high watermark to the followers."""

    entry: EntryIndex


Effect = Wake | Answer | Disown | Abandon | ProposeIsr | HighWatermarkMoved
Effects = list[Effect]


def offset_of(bounds: Bounds, bound: WaitBound) -> Offset:
    """Return the offset of the bound."""
    if bound is WaitBound.LOG_END:
        return bounds.log_end_offset
    if bound is WaitBound.HIGH_WATERMARK:
        return bounds.high_watermark
    return bounds.last_stable_offset


_STALE_MIN: Final = 64


class Waiters:
    """Waiters by the offset that their bound must pass. The caller chooses their numbers."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._offsets: dict[int, int] = {}  # only waiters that are still waiting

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, waiter: int, offset: int) -> None:
        """Add a waiter, which :meth:`remove_passed` returns once the bound is above ``offset``.

        Its number must be new.
        """
        self._offsets[waiter] = offset
        heapq.heappush(self._heap, (offset, waiter))

    def cancel(self, waiter: int) -> bool:
        """Remove the waiter. Return False if it was not waiting."""
        if self._offsets.pop(waiter, None) is None:
            return False
        if len(self._heap) > max(_STALE_MIN, 2 * len(self._offsets)):
            self._heap = [(offset, each) for each, offset in self._offsets.items()]
            heapq.heapify(self._heap)
        return True

    def remove_passed(self, bound: int) -> list[int]:
        """Remove and return the waiters whose offset is below the bound, lowest offset first."""
        found = []
        while self._heap and self._heap[0][0] < bound:
            _, waiter = heapq.heappop(self._heap)
            if self._offsets.pop(waiter, None) is not None:
                found.append(waiter)
        return found

    def beyond(self, end: int) -> list[int]:
        """Remove and return the waiters whose offset is not below ``end``, after a truncation."""
        found = [waiter for waiter, offset in self._offsets.items() if offset >= end]
        for waiter in found:
            self.cancel(waiter)
        return found
