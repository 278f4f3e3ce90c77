"""Reads at a follower: which replica a reader asks, and when a follower may answer.

A reader that names its rack asks the replica that is *near*: an in-sync follower in the rack on the
reader's own machine, else the leader if it is in the rack, else an in-sync follower there, else the
leader.

**Why a follower's answers are exact.** A follower answers only while it is on record as a member
of the ISR, in the epoch in which it follows (:func:`may_answer`). A member has every committed
entry, and a leader is elected among members. So below the follower's high watermark both logs have
the same entries. The follower derives transactions, aborted ranges and cuts from them by the same
code as the leader, so a follower never knows a bound that the leader has not had.

**Why they are not old.** The high watermark waits for every member of the ISR. So a member lacks
no record that is visible at the leader; it may only learn a little later that it is.

**What a follower does not know** is where the log ends now, and which records were lost. So it is
asked neither for the end of a log nor under ``read_uncommitted``, and nothing that it refuses is an
error: the reader asks the leader next.

**A follower that hears late** that it is no member any more, or that an unclean election has lost
records, answers as it would have answered before: until it sees the change in the store, or its
broker's lease is over.

Source: Kafka's KIP-392, where the leader names the replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, LeaderEpoch


class Spot(Struct, frozen=True):
    """Where a broker or a reader is: its rack, and the boot id of its machine (None: unknown)."""

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
    """Return the follower that a reader asks, or None: it asks the leader.

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
