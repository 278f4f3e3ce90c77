"""Reads at a follower: which replica a reader asks, and when a follower may answer.

A reader that names its rack asks the replica that is *near*: the leader if it is in the rack, else
an in-sync follower there, else the leader.

**Why a follower's answers are exact.** Once a follower has agreed with its leader, its log is a
prefix of the leader's, and the entries below its high watermark are committed. It derives
transactions, aborted ranges and cuts from the same entries by the same code as a leader. So each
bound that it knows is one that its leader had before, and below it both have the same records.

**What a follower does not know** is how far the partition is by now, and what was lost. So it is
not asked for the end of the log, nor under ``read_uncommitted``, and nothing that it refuses is an
error: the reader asks the leader next.

**Why it is in sync.** The high watermark waits for every member of the ISR. So a member lacks no
record that is visible at the leader; it may only hear later that it is. A follower that has left
the ISR may be behind by any number of records, and answers no reader.

Source: Kafka's KIP-392, where the leader names the replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, LeaderEpoch


class Spot(Struct, frozen=True):
    """Where a broker or a reader is: its rack, and the boot id of its machine (None: unknown)."""

    rack: str | None = None
    machine: str | None = None


NOWHERE: Final = Spot()


def nearest(
    leader: BrokerId, isr: Iterable[BrokerId], spots: Mapping[BrokerId, Spot], reader: Spot
) -> BrokerId:
    """Return the replica that a reader asks: in its rack, there on its machine, else the leader.

    The leader wins if a follower is no nearer.
    """

    def distance(broker: BrokerId) -> int:
        spot = spots.get(broker, NOWHERE)
        if reader.rack is None or spot.rack != reader.rack:
            return 2
        return 0 if reader.machine is not None and spot.machine == reader.machine else 1

    return min((leader, *isr), key=distance)


def may_answer(record: PartitionRecord, me: Member, epoch: LeaderEpoch) -> bool:
    """Return whether ``me``, which follows in this epoch, may answer readers by this record."""
    follows = record.leader not in (None, me.broker) and record.leader_epoch == epoch
    return follows and me in record.isr
