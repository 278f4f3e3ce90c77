"""A replica's bounds (LEO, HW and LSO), and their transitions from a state to the next one.

Invariants, after every transition:

* ``log_start <= LSO <= HW <= LEO``.
* LEO, HW and the log start never move back, with two exceptions: a follower's truncation moves LEO
  back, and also HW if committed records were lost, which is logged. Readers see HW move back only
  after an election that lost committed records.
* HW = LEO if there are no followers to wait for.
* LSO is the first undecided offset, or HW if there is none at or below it.

Replication counts entries: a replica keeps the HW as an entry index together with its offset,
because a marker moves only the index.

Source: Fluvio ("If there are no followers in the partition, the state is always COMMITTED once a
record gets acknowledged"), and Kafka's last stable offset.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds


class Boundary(NamedTuple):
    """A place between two entries: the next entry's index and the offset of its first record."""

    entry: EntryIndex
    offset: Offset


class BoundsState(Struct, frozen=True):
    """The bounds of a replica's log.

    ``followers``: the least number of others that must have a record (0: HW = LEO). ``trimmed``:
    readers get no record below this offset, although the log may still have it. A trim is at most
    the LSO of an earlier moment, so it also bounds HW and LSO from below.
    """

    leader_epoch: LeaderEpoch
    log_start: Boundary
    log_end: Boundary
    high_watermark: Boundary
    followers: int = 0
    first_undecided: Offset | None = None
    trimmed: Offset = Offset(0)

    @property
    def removable(self) -> Offset:
        """The offset below which entries may be removed from the log: the LSO, without the trim."""
        stable = self.high_watermark.offset
        if self.first_undecided is not None:
            stable = min(stable, self.first_undecided)
        return max(stable, self.log_start.offset)

    def bounds(self) -> Bounds:
        """Return the bounds for readers, as one consistent observation."""
        end = self.log_end.offset
        start = max(self.log_start.offset, min(self.trimmed, end))
        return Bounds(
            log_start_offset=start,
            last_stable_offset=max(self.removable, start),
            high_watermark=max(self.high_watermark.offset, start),
            log_end_offset=end,
        )


def opened(
    leader_epoch: LeaderEpoch, log_start: Boundary, log_end: Boundary, followers: int = 0
) -> BoundsState:
    """Return the state of a log that was just opened.

    Without followers HW = LEO, also after a crash.
    """
    known = log_end if followers == 0 else log_start
    return BoundsState(leader_epoch, log_start, log_end, known, followers)


def appended(state: BoundsState, records: int) -> BoundsState:
    """Add one entry with ``records`` records (0: a marker) at the end of the leader's log."""
    if records < 0:
        raise ValueError(f"an entry has no negative number of records: {records}")
    end = Boundary(EntryIndex(state.log_end.entry + 1), Offset(state.log_end.offset + records))
    replicated = end if state.followers == 0 else state.high_watermark
    return BoundsState(
        state.leader_epoch,
        state.log_start,
        end,
        replicated,
        state.followers,
        state.first_undecided,
        state.trimmed,
    )


def replicated(state: BoundsState, upto: Boundary) -> BoundsState:
    """Move HW up to ``upto``: every in-sync replica has the entries below it.

    HW never moves back, nor past LEO.
    """
    if upto.entry > state.log_end.entry:
        raise ValueError(f"replicated past the log end: {upto} > {state.log_end}")
    if upto.entry <= state.high_watermark.entry:
        return state
    return BoundsState(
        state.leader_epoch,
        state.log_start,
        state.log_end,
        upto,
        state.followers,
        state.first_undecided,
        state.trimmed,
    )


def undecided_from(state: BoundsState, offset: Offset | None) -> BoundsState:
    """Set the start of the earliest undecided transaction (None if there is none)."""
    return state if state.first_undecided == offset else replace(state, first_undecided=offset)


def evicted(state: BoundsState, log_start: Boundary) -> BoundsState:
    """Move the log start, after retention: never past the LSO, never backwards."""
    if log_start.entry <= state.log_start.entry:
        return state
    if log_start.offset > state.removable:
        raise ValueError(f"retention past the last stable offset: {log_start}")
    return replace(state, log_start=log_start)


def trimmed_below(state: BoundsState, offset: Offset) -> BoundsState:
    """Hide the records below the offset from readers: never fewer than before."""
    return state if offset <= state.trimmed else replace(state, trimmed=offset)


def waiting_for(state: BoundsState, followers: int) -> BoundsState:
    """Set the number of other replicas that must have a record.

    HW does not move until these report their log ends.
    """
    return state if state.followers == followers else replace(state, followers=followers)


def truncated(state: BoundsState, log_end: Boundary, *, lost: bool = False) -> BoundsState:
    """Truncate the log to ``log_end``.

    Never below the HW, because entries below it are never taken back, unless a leader without them
    was elected: then ``lost`` is true, and HW goes back with the log.
    """
    high = state.high_watermark
    if log_end.entry < high.entry and not lost:
        raise ValueError(f"cut below the high watermark: {log_end} < {high}")
    if log_end.entry > state.log_end.entry:
        raise ValueError(f"cut past the log end: {log_end} > {state.log_end}")
    return replace(state, log_end=log_end, high_watermark=min(high, log_end))


def emptied(state: BoundsState, at: Boundary) -> BoundsState:
    """Empty the log and begin it at this place, the start of the leader's log."""
    return replace(state, log_start=at, log_end=at, high_watermark=at, first_undecided=None)
