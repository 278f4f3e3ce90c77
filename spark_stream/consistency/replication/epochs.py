"""Where the leader epochs of a log begin and end: this shows whether and where two logs diverge.

Every entry carries the epoch of the leader that appended it, and epochs never fall along a log. An
epoch ends where the first entry of a later one begins, or at the log's end if there is none.

Two replicas of a partition compare their epochs to find what they share (:func:`agreement`). An
epoch has one leader, and a follower appends that leader's entries only after the part that both
logs share. So if two logs hold an entry of the same index and epoch, they are the same up to there.

Source: Raft's log matching property; Kafka's leader epoch cache (KIP-101, KIP-279).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from msgspec import structs

from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.structs import OffsetField, Positional


class EpochStarts:
    """The first entry of each epoch in a log, without epochs that have no entry.

    One writer at a time; any thread may read.
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
        """The epoch of the last entry; None if there is none."""
        return LeaderEpoch(self._epochs[-1]) if self._epochs else None

    def on_appended(self, epoch: LeaderEpoch, at: Boundary) -> None:
        """Note that an entry of this epoch is at this place, after all others."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._places.append(at)
            self._epochs.append(epoch)

    def epoch_of(self, entry: int) -> LeaderEpoch | None:
        """Return the epoch of an entry that the log has; None if it lies before the first one."""
        at = bisect_right(self._places, entry, hi=len(self._epochs), key=lambda each: each.entry)
        return LeaderEpoch(self._epochs[at - 1]) if at else None

    def start_of(self, epoch: int) -> Boundary | None:
        """Return where the epoch's first entry is, or None if the log has none."""
        at = bisect_left(self._epochs, epoch)
        found = at < len(self._epochs) and self._epochs[at] == epoch
        return self._places[at] if found else None

    def end_of(self, epoch: int, log_end: Boundary) -> Boundary:
        """Return where the epoch ended: the offsets from there on may be of a later epoch."""
        later = bisect_right(self._epochs, epoch)
        return self._places[later] if later < len(self._epochs) else log_end

    def before(self, offset: Offset) -> tuple[LeaderEpoch, Boundary] | None:
        """Return the epoch of the record before the offset and its start, or None if none is."""
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
    """Which epoch each entry of a log has, in a form small enough to send to another replica.

    The log holds the entries ``start`` to ``end - 1``; what was before ``start`` is evicted.
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
        """Return where the epoch at this index of ``epochs`` ends."""
        return self.epochs[place + 1][1] if place + 1 < len(self.epochs) else self.end

    def below(self, end: int) -> EpochHistory:
        """Return the history of the same log without its entries from ``end`` on."""
        kept = tuple(each for each in self.epochs if each[1] < end)
        return EpochHistory(self.start, max(self.start, min(self.end, end)), kept)


def agreement(one: EpochHistory, other: EpochHistory) -> EntryIndex | None:
    """Return the index up to which two logs hold the same entries, or None if it cannot be known.

    Take the greatest epoch of which both logs have an entry at the same index: they agree up to the
    earlier of that epoch's two ends. An epoch that only one log has says nothing, because its
    leader may never have reached the other replica.

    None means that what the logs share, if anything, is evicted from one of them: a follower then
    starts again from the leader's first entry, unless it is known to have had all that is evicted.
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
    # No entry is shared: they are empty, or the first entries differ. Nothing is before entry 0.
    return EntryIndex(0) if low == 0 else None
