"""A replica's effects: what its core asks its caller to do after an event.

Waiting reads and appends are numbers that the caller chose. Reads wait for one of three bounds to
pass an offset, appends for their acknowledgement; each is named in one effect, once.
"""

from __future__ import annotations

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
    """These reads have something to see."""

    waiters: tuple[int, ...]


class Answer(Struct, frozen=True):
    """These appends have reached the isolation they asked for: acknowledge them."""

    tickets: tuple[int, ...]


class Disown(Struct, frozen=True):
    """The records of these appends were cut off before they were acknowledged."""

    tickets: tuple[int, ...]


class Abandon(Struct, frozen=True):
    """These appends were still waiting when the replica ceased to lead.

    Their records may stay or be cut off: only the next leader knows.
    """

    tickets: tuple[int, ...]


class ProposeIsr(Struct, frozen=True):
    """Put these members on the partition's record, by a compare-and-set on this version of it.

    Report the outcome by ``isr_changed`` or ``isr_refused``; if it is unknown, call neither.
    """

    members: tuple[Member, ...]
    version: int


class ProposeRecord(Struct, frozen=True):
    """Replace the record of this version by this one: the leader cannot lead by the old one."""

    me: Member
    before: PartitionRecord
    after: PartitionRecord
    version: int


class HighWatermarkMoved(Struct, frozen=True):
    """Tell followers the leader's high watermark."""

    entry: EntryIndex


Effect = Wake | Answer | Disown | Abandon | ProposeIsr | HighWatermarkMoved
Effects = list[Effect]


def offset_of(bounds: Bounds, bound: WaitBound) -> Offset:
    """Return where the bound is."""
    if bound is WaitBound.LOG_END:
        return bounds.log_end_offset
    if bound is WaitBound.HIGH_WATERMARK:
        return bounds.high_watermark
    return bounds.last_stable_offset
