"""What a reader remembers of the log that it read, to learn whether its records are still there.

A *lineage* is a tuple of claims ``(epoch, end)``, both rising: the record before the offset ``end``
was written in the leader epoch ``epoch``. The last claim is that of the reader's position. Each
earlier claim ends where the next claim's epoch began. The claims go back to the newest epoch whose
start is below the high watermark: no failover takes its first record back, so every later log
knows this epoch. So a lineage is nearly always one claim. If the claims would go back beyond the
first record that the log knows, that record's epoch comes twice: first with the record's own
offset. Retention removes only what is replicated, so every later log had what was before that.

Invariant: if a log holds a record of an epoch right before ``end``, it holds all that the reader
has read up to there. The reason: an epoch has one leader, and a replica takes that leader's entries
only after the part that both logs share (:mod:`spark_stream.consistency.replication.epochs`). So
the newest claim that holds shows what survives. If a claim does not hold but the log knows its
epoch, its records survive up to the end of that epoch. If the log does not know the epoch, nothing
of it survives, and the claim before it decides.

A claim has the epoch of the record, not that of the leader who served it. Two successive leaders
may never have followed each other; then the later one has records of an *earlier* epoch at offsets
where the reader got records of a later one.

Source: Kafka's consumer carries the epoch of the last batch that it fetched (KIP-320), but compares
offsets only if a log does not know that epoch; the claims are Raft's log matching property.
"""

from __future__ import annotations

from typing import Final

from spark_stream.consistency.ids import Offset
from spark_stream.consistency.replication.epochs import EpochStarts
from spark_stream.consistency.replication.leader import Boundary

Lineage = tuple[tuple[int, int], ...]
"""Claims ``(epoch, end)``, both rising."""

NOTHING_KNOWN: Final[Lineage] = ()
"""The lineage of an offset that a user named, or that has no record before it."""


def lineage_of(starts: EpochStarts, offset: Offset, replicated: Offset) -> Lineage:
    """Return an offset's lineage; entries below ``replicated`` are never taken back."""
    claims = []
    end = offset
    while (found := starts.before(end)) is not None:
        epoch, start = found
        claims.append((int(epoch), int(end)))
        end = start.offset
        if end < replicated:
            break
    else:
        if claims:  # the log can claim nothing before the first record that it knows
            claims.append((claims[-1][0], int(end)))
    return tuple(reversed(claims))


def surviving(
    lineage: Lineage, starts: EpochStarts, log_start: Offset, log_end: Boundary
) -> Offset:
    """Return up to which offset the log still holds the records of a (not empty) lineage.

    Records that retention has removed count as held: their removal is reported elsewhere. If the
    log knows none of the epochs, records that were replicated are lost (an unclean election, an
    older copy of the log). Then the result is below the last claim, and as near to the real place
    as the log can tell.
    """
    return max(log_start, _left_behind(lineage, starts, log_start, log_end))


def _left_behind(
    lineage: Lineage, starts: EpochStarts, log_start: Offset, log_end: Boundary
) -> Offset:
    """Return the offset where the log and the reader's history diverge."""
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
    """Return the offset from which a reader at ``offset`` has lost records, or None if none.

    ``held``: up to where its lineage survives. The reader should continue there.

    The last claim may be above the offset, if the reader has not read as far as the position it was
    given, or below it.
    """
    if not lineage or held >= min(offset, lineage[-1][1]):
        return None
    return held
