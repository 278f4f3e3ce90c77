"""Leader epochs of a log, the common part of two logs, and the lost records of a reader.

Every entry carries the epoch of the leader that appended it, and epochs never fall along a log. An
epoch ends where the first entry of a later one begins, or at the log's end if there is none.

**Agreement.** Two replicas of a partition compare their epochs to find what they share
(:func:`agreement`). An epoch has one leader, and a follower appends that leader's entries only
after the part that both logs share. So if two logs hold an entry of the same index and epoch, they
are the same up to there.

**Lineages.** A reader keeps the *lineage* of its position, and so detects lost records. A lineage
is a tuple of claims ``(epoch, end)``, both rising: the record before the offset ``end`` was written
in the leader epoch ``epoch``. The last claim is that of the reader's position. Each earlier claim
ends where the next claim's epoch began. The claims go back to the newest epoch whose start is below
the high watermark: no failover takes its first record back, so every later log has this epoch. So a
lineage is nearly always one claim. If the claims would go back beyond the first record that the log
has, that record's epoch comes twice: first with the record's own offset. Retention removes only
replicated records, so every later log had the records before that one.

Invariant: if a log holds a record of an epoch right before ``end``, it holds all that the reader
has read up to there. The reason is that of an agreement. So the newest claim that holds shows the
surviving records. If a claim does not hold but the log has its epoch, its records survive up to the
end of that epoch. If the log does not have the epoch, none of it survives, and the claim before it
decides.

A claim has the epoch of the record, not that of the leader who served it. Two successive leaders
may never have followed each other. Then the later leader has records of an *earlier* epoch at
offsets where the reader got records of a later one.

Source: Raft's log matching property, Kafka's leader epoch cache (KIP-101, KIP-279). Kafka's
consumer carries the epoch of the last batch that it fetched (KIP-320), but compares offsets only if
a log does not have that epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import structs

from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.structs import OffsetField, Positional


class EpochStarts:
    """The first entry of each epoch in a log, without epochs that have no entry.

    One writer at a time. Any thread may read.
    """

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._places: list[Boundary] = []

    @classmethod
    def derived(cls, tables: Sequence[Table]) -> EpochStarts:
        """Derive the starts from the entries tables of a whole log, oldest first."""
        found = cls()
        for table in tables:
            epochs, rows = np.unique(table["leader_epoch"], return_index=True)
            entries = table["entry_index"][rows].tolist()
            offsets = table["base_offset"][rows].tolist()
            for epoch, entry, offset in zip(epochs.tolist(), entries, offsets, strict=True):
                found.on_appended(LeaderEpoch(epoch), Boundary(EntryIndex(entry), Offset(offset)))
        return found

    @property
    def last(self) -> LeaderEpoch | None:
        """The epoch of the last entry, or None in an empty log."""
        return LeaderEpoch(self._epochs[-1]) if self._epochs else None

    def on_appended(self, epoch: LeaderEpoch, at: Boundary) -> None:
        """Record an entry of this epoch at this place, after all others."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._places.append(at)
            self._epochs.append(epoch)

    def epoch_of(self, entry: int) -> LeaderEpoch | None:
        """Return the epoch of an entry of the log, or None if it is before the first one."""
        at = bisect_right(self._places, entry, hi=len(self._epochs), key=lambda each: each.entry)
        return LeaderEpoch(self._epochs[at - 1]) if at else None

    def start_of(self, epoch: int) -> Boundary | None:
        """Return the place of the epoch's first entry, or None if the log has no entry of it."""
        at = bisect_left(self._epochs, epoch)
        found = at < len(self._epochs) and self._epochs[at] == epoch
        return self._places[at] if found else None

    def end_of(self, epoch: int, log_end: Boundary) -> Boundary:
        """Return the end of the epoch: the offsets from there on may belong to a later epoch."""
        later = bisect_right(self._epochs, epoch)
        return self._places[later] if later < len(self._epochs) else log_end

    def before(self, offset: Offset) -> tuple[LeaderEpoch, Boundary] | None:
        """Return the epoch of the record before the offset, and the epoch's start, or None."""
        known = len(self._epochs)
        at = bisect_left(self._places, offset, hi=known, key=lambda each: each.offset) - 1
        return None if at < 0 else (LeaderEpoch(self._epochs[at]), self._places[at])

    def latest(self, count: int) -> list[tuple[LeaderEpoch, Boundary]]:
        """Return the last ``count`` epochs, the oldest first, each with its first entry."""
        known = len(self._epochs)
        places = self._places[max(0, known - count) : known]
        epochs = map(LeaderEpoch, self._epochs[max(0, known - count) : known])
        return list(zip(epochs, places, strict=True))

    def history(self, start: EntryIndex, end: EntryIndex) -> EpochHistory:
        """Return the epochs of a log that holds the entries from ``start`` to before ``end``."""
        firsts = zip(self._epochs, self._places, strict=True)
        return EpochHistory(
            start, end, tuple((epoch, max(int(at.entry), int(start))) for epoch, at in firsts)
        )


class EpochHistory(Positional, array_like=True):
    """The epoch of each entry of a log, in a form small enough to send to another replica.

    The log holds the entries ``start`` to ``end - 1``. Earlier entries are evicted.
    ``epochs``: (epoch, index of its first entry), both rising.
    """

    start: OffsetField
    end: OffsetField
    epochs: tuple[tuple[OffsetField, OffsetField], ...]

    def __post_init__(self) -> None:
        # Epochs whose entries are all evicted start where the next one does: leave them out.
        ends = [*(first for _, first in self.epochs), self.end][1:]
        kept = tuple(
            each for each, ending in zip(self.epochs, ends, strict=True) if each[1] < ending
        )
        structs.force_setattr(self, "epochs", kept)

    def end_of(self, place: int) -> int:
        """Return the end of the epoch at this index of ``epochs``."""
        return self.epochs[place + 1][1] if place + 1 < len(self.epochs) else self.end

    def below(self, end: int) -> EpochHistory:
        """Return the history of the same log without its entries from ``end`` on."""
        kept = tuple(each for each in self.epochs if each[1] < end)
        return EpochHistory(self.start, max(self.start, min(self.end, end)), kept)


def agreement(one: EpochHistory, other: EpochHistory) -> EntryIndex | None:
    """Return the index up to which two logs hold the same entries, or None if it is undecidable.

    Take the greatest epoch of which both logs have an entry at the same index: they agree up to the
    earlier of that epoch's two ends. An epoch of only one log is no evidence, because its leader
    may never have reached the other replica.

    None means that any common part is evicted from one of the logs. Then the follower starts again
    from the leader's first entry, unless it is certain that it had all evicted entries.
    """
    low, high = max(one.start, other.start), min(one.end, other.end)
    theirs = {epoch: place for place, (epoch, _) in enumerate(other.epochs)}
    for place in range(len(one.epochs) - 1, -1, -1):
        there = theirs.get(one.epochs[place][0])
        if there is None:
            continue
        end = min(one.end_of(place), other.end_of(there), high)
        if end > low:
            return EntryIndex(end)
    # No common epoch was found. Logs that both start at entry 0 share no entry: one is empty, or
    # the first entries differ. They agree at 0. Otherwise retention may have removed the common
    # part.
    return EntryIndex(0) if low == 0 else None


Lineage = tuple[tuple[int, int], ...]
"""Claims ``(epoch, end)``, both rising."""

NO_LINEAGE: Final[Lineage] = ()
"""The lineage of an offset that a user named, or that has no record before it."""


def lineage_of(starts: EpochStarts, offset: Offset, replicated: Offset) -> Lineage:
    """Return the claims (epoch, end) of a position at this offset, oldest first.

    They go back to the newest epoch that begins below ``replicated``, because no failover removes
    the first record of that epoch.
    """
    claims = []
    end = offset
    while (found := starts.before(end)) is not None:
        epoch, start = found
        claims.append((int(epoch), int(end)))
        end = start.offset
        if end < replicated:
            break
    else:
        if claims:  # the log has no evidence before its first record
            claims.append((claims[-1][0], int(end)))
    return tuple(reversed(claims))


def surviving(
    lineage: Lineage, starts: EpochStarts, log_start: Offset, log_end: Boundary
) -> Offset:
    """Return the offset up to which the log still holds the records of a (not empty) lineage.

    Records that retention has removed count as held: their removal is reported elsewhere. If the
    log has none of the epochs, replicated records are lost (an unclean election, an older copy of
    the log). Then the result is below the last claim, and as near to the real place as the log's
    epochs allow.
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

    ``held``: the offset up to which its lineage survives. The reader should continue there.

    The last claim may be above the offset, if the reader has not read as far as the position it was
    given, or below it.
    """
    if not lineage or held >= min(offset, lineage[-1][1]):
        return None
    return held
