"""What a follower does with its leader's answer, and which frames it takes.

**Order.** A follower sends the epochs of its log; the leader answers with the place up to which
both logs are the same (``epochs.agreement``). The follower cuts off what it has beyond that place
*before* it takes a frame and before it reports anything. From then on its log is a prefix of its
leader's, and each frame starts where the log ends.

**Cutting below the high watermark.** What is below a follower's high watermark is on every in-sync
replica, so also on any leader that was elected from them. A leader that asks for a deeper cut was
elected because all of those were lost, or by an unclean election. The follower obeys, because
otherwise the replicas would never agree again, and logs what is lost (:attr:`Cut.lost_from`).

**Damage.** A follower with a damaged batch reports to its leader only the epochs of the log before
that batch's entry. So the leader's answer is a cut there at the latest, and the entries that were
cut are copied again from the leader. That loses nothing, although it is below the high watermark.

**Epochs.** A frame of an older epoch comes from a leader that has been replaced. One of a newer
epoch comes from a leader that this replica has not heard of yet, and is requested again later.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication.leader import Boundary, LeaderState


class Refusal(Enum):
    """Why a request, or a frame, of another broker is refused."""

    NOT_LEADING = "this broker does not lead the partition"
    FENCED = "it is of an epoch that is over"
    UNKNOWN_EPOCH = "it is of an epoch that this broker has not heard of yet"
    NOT_A_REPLICA = "the broker is none of the partition's replicas"
    GAP = "it does not go on where the log ends"


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


class GoOn(Struct, frozen=True):
    """The follower's log is a prefix of its leader's already."""


class CutBack(Struct, frozen=True):
    """Cut the log back so that it ends at ``entry``.

    ``lost_from``: where committed entries are lost from, or None if none are.
    """

    entry: EntryIndex
    lost_from: EntryIndex | None = None


class BeginAnew(Struct, frozen=True):
    """Remove all entries; the log is empty and begins at this place.

    ``lost_from``: as in :class:`CutBack`.
    """

    at: Boundary
    lost_from: EntryIndex | None = None


Preparation = GoOn | CutBack | BeginAnew


def preparation(
    state: LeaderState, agreed: Agreement, hole: EntryIndex | None = None
) -> Preparation | Refusal:
    """Decide what the follower does with its log before it takes frames.

    ``hole``: its first damaged entry; what the follower sent to the leader ended before it.
    """
    wrong = misfit_of(state.leader_epoch, agreed.leader_epoch)
    if wrong is not None:
        return wrong
    high = state.high_watermark.entry
    if agreed.begin is not None:
        if state.log_start == state.log_end == agreed.begin:
            return GoOn()
        has_committed = state.log_start.entry < high and agreed.begin.entry < high
        first = max(state.log_start.entry, agreed.begin.entry)
        is_lost = has_committed and (hole is None or first < hole)
        return BeginAnew(agreed.begin, first if is_lost else None)
    if agreed.entry > state.log_end.entry:
        raise ValueError(f"agreed past the log end: {agreed.entry} > {state.log_end}")
    if agreed.entry == state.log_end.entry:
        return GoOn()
    is_lost = agreed.entry < high and (hole is None or agreed.entry < hole)
    return CutBack(agreed.entry, agreed.entry if is_lost else None)


class Take(Struct, frozen=True):
    """Append the frame's entries, without the first ``skip``, which are there already."""

    skip: int = 0


def judge_frame(
    epoch: LeaderEpoch, log_end: EntryIndex, frame_epoch: int, first: int, count: int
) -> Take | Refusal:
    """Decide what a follower in this epoch, whose log ends here, does with a frame of its session.

    The frame holds ``count`` entries from the index ``first`` on.
    """
    wrong = misfit_of(epoch, frame_epoch)
    if wrong is not None:
        return wrong
    if first > log_end:
        return Refusal.GAP
    return Take(min(log_end - first, count))


def estranged(log_end: Boundary, base_offset: int) -> BeginAnew | None:
    """Return how to start again if the leader's next entry does not have this offset, or None.

    The offsets of one entry differ only if records were given up that this replica had evicted: its
    log has another history. It removes everything, and then asks its leader again from entry 0 on.
    """
    if base_offset == log_end.offset:
        return None
    return BeginAnew(Boundary(EntryIndex(0), Offset(0)), lost_from=EntryIndex(0))


def misfit_of(epoch: LeaderEpoch, asked: int) -> Refusal | None:
    """Return why a request of the epoch ``asked`` is refused, or None if it is of this epoch."""
    if asked < epoch:
        return Refusal.FENCED
    return Refusal.UNKNOWN_EPOCH if asked > epoch else None
