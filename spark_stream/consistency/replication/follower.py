"""A follower: its reaction to its leader's answer, the frames of its session, and its reads.

**Order.** A follower sends the epochs of its log. The leader answers with the place up to which
both logs are the same (``epochs.agreement``). The follower truncates its log to that place *before*
it takes a frame and before it reports its log end. From then on its log is a prefix of its
leader's, and each frame starts where the log ends.

**Truncation below the high watermark.** The entries below a follower's high watermark are on every
in-sync replica, so also on any leader that was elected from them. A leader that requires a deeper
truncation was elected because all of those were lost, or by an unclean election. The follower
obeys, because otherwise the replicas would never agree again. It logs the lost entries
(:attr:`Truncate.lost_from`).

**Damage.** A follower with a damaged batch reports to its leader only the epochs of the log before
that batch's entry. So the leader's answer is a truncation there at the latest, and the truncated
entries are copied again from the leader. No entry is lost by that, although it is below the high
watermark.

**Epochs.** A frame of an older epoch comes from a leader that has been replaced. A frame of a newer
epoch comes from a leader whose election this replica has not read yet, and is requested again
later.

**Reads at a follower.** A reader that names its rack reads at the replica that is *near*: an
in-sync follower in the rack on the reader's own machine, else the leader if it is in the rack, else
an in-sync follower there, else the leader.

*Why a follower's answers are exact.* A follower answers only while it is on record as a member of
the ISR, in the epoch in which it follows (:func:`may_answer`). A member has every committed entry,
and a leader is elected among members. So below the follower's high watermark both logs have the
same entries. The follower derives transactions, aborted ranges and cuts from them by the same code
as the leader, so a follower never has a bound that the leader has not had.

*Why they are not old.* The high watermark waits for every member of the ISR. So a member lacks no
record that is visible at the leader. Only its high watermark may rise a little later.

*The limits of a follower.* It has neither the present end of the leader's log nor the lost records.
So readers use the leader for the end of a log and for ``read_uncommitted``. A refusal of a follower
is no error: the reader reads at the leader next.

*A late change.* A follower that is no member any more, or whose partition lost records in an
unclean election, answers as before until it reads the change from the store, or its broker's lease
expires.

Source of the last part: Kafka's KIP-392, where the leader names the replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication.bounds import Boundary, BoundsState


class Refusal(Enum):
    """The reason for the refusal of a request, or a frame, of another broker."""

    NOT_LEADING = "this broker does not lead the partition"
    FENCED = "stale leader epoch"
    UNKNOWN_EPOCH = "leader epoch that this broker has not read yet"
    NOT_A_REPLICA = "the broker has no replica of the partition"
    GAP = "gap between the log end and the frame"


class Agreement(Struct, frozen=True):
    """The place where a session's first frame begins: both logs share the entries below ``entry``.

    ``begin``: the logs share no entry that still exists. The follower's log starts again, empty, at
    this place, the start of the leader's log. ``high_watermark`` is an entry index.
    """

    leader_epoch: LeaderEpoch
    entry: EntryIndex
    high_watermark: EntryIndex
    begin: Boundary | None = None


class LeaderAnswer(Struct, frozen=True):
    """A leader's answer to a follower that starts."""

    session: int
    agreement: Agreement


class Continue(Struct, frozen=True):
    """The follower's log is a prefix of its leader's already."""


class Truncate(Struct, frozen=True):
    """Cut the log back so that it ends at ``entry``.

    ``lost_from``: the first lost committed entry, or None without a loss.
    """

    entry: EntryIndex
    lost_from: EntryIndex | None = None


class StartOver(Struct, frozen=True):
    """Remove all entries. The log is empty and begins at this place.

    ``lost_from``: as in :class:`Truncate`.
    """

    at: Boundary
    lost_from: EntryIndex | None = None


Preparation = Continue | Truncate | StartOver


def preparation(
    state: BoundsState, agreed: Agreement, hole: EntryIndex | None = None
) -> Preparation | Refusal:
    """Decide how the follower prepares its log before it takes frames.

    ``hole``: its first damaged entry. The epochs that it sent to the leader ended before it.
    """
    wrong = epoch_refusal(state.leader_epoch, agreed.leader_epoch)
    if wrong is not None:
        return wrong
    high = state.high_watermark.entry
    if agreed.begin is not None:
        if state.log_start == state.log_end == agreed.begin:
            return Continue()
        has_committed = state.log_start.entry < high and agreed.begin.entry < high
        first = max(state.log_start.entry, agreed.begin.entry)
        is_lost = has_committed and (hole is None or first < hole)
        return StartOver(agreed.begin, first if is_lost else None)
    if agreed.entry > state.log_end.entry:
        raise ValueError(f"agreed past the log end: {agreed.entry} > {state.log_end}")
    if agreed.entry == state.log_end.entry:
        return Continue()
    is_lost = agreed.entry < high and (hole is None or agreed.entry < hole)
    return Truncate(agreed.entry, agreed.entry if is_lost else None)


class Take(Struct, frozen=True):
    """Append the frame's entries without the first ``skip``, which the log has already."""

    skip: int = 0


def judge_frame(
    epoch: LeaderEpoch, log_end: EntryIndex, frame_epoch: int, first: int, count: int
) -> Take | Refusal:
    """Judge a frame of the session of a follower in this epoch, whose log ends here.

    The frame holds ``count`` entries from the index ``first`` on.
    """
    wrong = epoch_refusal(epoch, frame_epoch)
    if wrong is not None:
        return wrong
    if first > log_end:
        return Refusal.GAP
    return Take(min(log_end - first, count))


def diverged(log_end: Boundary, base_offset: int) -> StartOver | None:
    """Return the new beginning if the leader's next entry has another offset, or None.

    The offsets of one entry differ only if records were lost that this replica had evicted: its log
    has another history. It removes all entries, and starts again at its leader from entry 0 on.
    """
    if base_offset == log_end.offset:
        return None
    return StartOver(Boundary(EntryIndex(0), Offset(0)), lost_from=EntryIndex(0))


def epoch_refusal(epoch: LeaderEpoch, asked: int) -> Refusal | None:
    """Return the refusal of a request of the epoch ``asked``, or None if it is of this epoch."""
    if asked < epoch:
        return Refusal.FENCED
    return Refusal.UNKNOWN_EPOCH if asked > epoch else None


class Spot(Struct, frozen=True):
    """The location of a broker or a reader: its rack, and its machine's boot id (None: unknown)."""

    rack: str | None = None
    machine: str | None = None


NOWHERE: Final = Spot()


def followers(record: PartitionRecord) -> Collection[Member]:
    """Return the followers that may answer readers."""
    return [each for each in record.isr if each.broker != record.leader]


def may_answer(record: PartitionRecord, me: Member, epoch: LeaderEpoch) -> bool:
    """Return whether ``me``, which follows in this epoch, may answer readers by this record."""
    return record.leader_epoch == epoch and me in followers(record)


def nearest(
    record: PartitionRecord, spots: Mapping[BrokerId, Spot], reader: Spot
) -> BrokerId | None:
    """Return the follower at which a reader reads, or None: it reads at the leader.

    It is a follower in the reader's rack, on its machine if there is one, and nearer than the
    leader.
    """

    def distance(broker: BrokerId) -> int:
        spot = spots.get(broker, NOWHERE)
        if reader.rack is None or spot.rack != reader.rack:
            return 2
        return 0 if reader.machine is not None and spot.machine == reader.machine else 1

    if record.leader is None:
        return None
    brokers = [record.leader, *(each.broker for each in followers(record))]
    found = min(brokers, key=distance)
    return None if found == record.leader else found
