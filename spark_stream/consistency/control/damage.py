"""What a broker does that finds a batch of its log damaged: when it leaves, stays, or waits.

A damaged batch has its entry still, so a replica with one agrees with all others about what the log
is; it only cannot give these records. So to stay costs no record while another copy exists, and to
cut the log at the damage does if there is none.

**Rule.** A broker leaves by a new generation of its logs: by that one compare-and-set it is in sync
nowhere, and leads nothing. It does so if another in-sync replica of the damaged partition lives,
who has all that is committed. Order: the generation is on record; then the broker follows whoever
leads; its log is cut at the damage only when that leader has answered, and what is cut comes again
from there (``consistency.follower``).

It stays if nobody else could lead: nothing is cut, the entries around the damage are served, and
who asks for damaged ones is told. It looks again whenever the others have changed. So when an
in-sync replica comes back, or a follower becomes one, it leaves then.

It waits if a partition that is sound would be left without a leader: one whose other in-sync
replicas are all dead, and still count as such. They are taken off that record soon, or come back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from spark_stream.consistency.control.election import Alive, live_members
from spark_stream.consistency.control.partition_record import Member, PartitionRecord


class Verdict(Enum):
    """What a broker does about a damaged replica."""

    LEAVE = "it begins a new generation of its logs"
    WAIT = "it leaves as soon as no partition loses its leader by that"
    STAY = "nobody else has the records"


def has_heir(record: PartitionRecord, me: Member, alive: Alive) -> bool:
    """Whether an in-sync replica of another broker lives."""
    return any(each.broker != me.broker for each in live_members(record, alive))


def can_go_on(record: PartitionRecord, me: Member, alive: Alive) -> bool:
    """Whether the partition is led as before once this broker has another generation.

    A partition of which this broker alone is in sync goes on with it (``scripts.electing.resume``).
    """
    if record.member(me.broker) != me or len(record.isr) == 1:
        return True
    return has_heir(record, me, alive)


def judge(
    damaged: PartitionRecord, others: Iterable[PartitionRecord], me: Member, alive: Alive
) -> Verdict:
    """What to do about one damaged replica; ``others``: all records of this broker's replicas."""
    if not has_heir(damaged, me, alive):
        return Verdict.STAY
    if not all(can_go_on(each, me, alive) for each in others):
        return Verdict.WAIT
    return Verdict.LEAVE
