"""What a reader remembers of the log that it read, to learn whether its records are still there.

A *lineage* is a tuple of claims ``(epoch, end)``, both rising: the record before the offset ``end``
was written in the leader epoch ``epoch``. The last claim is of where the reader was told that it
is. The claims before it end where the next one's epoch began; they go back to the first whose epoch
has a record below the high watermark, for no failover takes that one back, so every later log knows
this epoch. So a lineage nearly always is one claim. Where they would go back beyond the first
record that the log knows, that record's epoch comes twice: first with the record's own offset.
Retention removes only what is replicated, so every later log has what was before that.

Invariant: where a log holds a record of an epoch right before ``end``, it holds all that the reader
has read up to there. For an epoch has one leader, and a replica takes its entries only behind what
it shares with it (:mod:`spark_stream.consistency.replication.epochs`). So the newest claim that
holds tells what is left. One that does not hold, of an epoch that the log knows, is left up to the
end of that epoch; of an epoch that the log does not know, nothing is left, and the claim before it
tells.

It takes the epoch of the record, not that of the leader who gave it: two leaders in a row may have
been elected that never followed each other, and then the later one has records of an *earlier*
epoch at offsets where the reader got records of a later one.

Source: Kafka's consumer carries the epoch of the last batch that it fetched (KIP-320), but compares
offsets only where a log does not know that epoch; the claims are Raft's log matching property.
"""

from __future__ import annotations

from typing import Final

from spark_stream.consistency.ids import Offset
from spark_stream.consistency.replication.epochs import EpochStarts
from spark_stream.consistency.replication.leader import Boundary

Lineage = tuple[tuple[int, int], ...]
"""Claims ``(epoch, end)``, both rising."""

NOTHING_KNOWN: Final[Lineage] = ()
"""Of an offset that a user named, or before which there is no record."""


def lineage_of(starts: EpochStarts, offset: Offset, replicated: Offset) -> Lineage:
    """The lineage of an offset of this log, of which the part below ``replicated`` is for good."""
    claims = []
    end = offset
    while (found := starts.before(end)) is not None:
        epoch, start = found
        claims.append((int(epoch), int(end)))
        end = start.offset
        if end < replicated:
            break
    else:
        if claims:  # what is before the first record that the log knows, it cannot claim
            claims.append((claims[-1][0], int(end)))
    return tuple(reversed(claims))


def surviving(
    lineage: Lineage, starts: EpochStarts, log_start: Offset, log_end: Boundary
) -> Offset:
    """Up to which offset the log still holds the records that a (not empty) lineage tells of.

    What retention has removed counts as held: it is told in another way. Where the log knows none
    of the epochs, records that were replicated are lost (an unclean election, an older copy of the
    log): then it is below the last claim, and as near to the place as the log can tell.
    """
    return max(log_start, _left_behind(lineage, starts, log_start, log_end))


def _left_behind(
    lineage: Lineage, starts: EpochStarts, log_start: Offset, log_end: Boundary
) -> Offset:
    """Where the log and the reader's history parted."""
    for epoch, end in reversed(lineage):
        if end <= log_start:
            return log_start
        here = starts.start_of(epoch)
        if here is not None and here.offset < end:
            return min(Offset(end), starts.end_of(epoch, log_end).offset)
    epoch, end = lineage[0]
    if len(lineage) > 1 and lineage[1][0] == epoch:  # not a claim: the log began here
        return min(Offset(end), log_end.offset)
    ended, other = starts.end_of(epoch, log_end).offset, starts.before(Offset(end))
    return ended if ended < end or other is None else other[1].offset


def lost_above(offset: int, lineage: Lineage, held: int) -> int | None:
    """Above which offset a reader at ``offset`` has lost records; None: it has lost none.

    ``held``: up to where its lineage survives. There it is to go on.

    The last claim may be above the offset, if the reader has not come as far as it was told, or
    below it.
    """
    if not lineage or held >= min(offset, lineage[-1][1]):
        return None
    return held
