"""What a broker does when a batch of its log is damaged: when it leaves, stays, or waits.

The entry of a damaged batch is intact, so the replica still agrees with all others about the log;
it only cannot serve these records. Staying costs no record while another copy exists. Cutting the
log at the damage loses records if there is no other copy.

**Rule.** A broker leaves by a new generation of its logs: after that one compare-and-set it is in
sync nowhere, and leads nothing. It does so if another in-sync replica of the damaged partition is
alive, which has all that is committed. Order: first the generation is on record; then the broker
follows the leader. Its log is cut at the damage only when that leader has answered, and the removed
part is copied from the leader (``consistency.replication.follower``).

It stays if no other replica could lead: nothing is cut, the entries around the damage are served,
and a read of damaged ones gets an error. It decides again whenever the other replicas change, so it
leaves once an in-sync replica comes back or a follower joins the ISR.

It waits if leaving would leave a sound partition without a leader: one whose other in-sync replicas
are all dead but still on the record. They are removed from that record soon, or come back.
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
    """Return whether an in-sync replica on another broker is alive."""
    return any(each.broker != me.broker for each in live_members(record, alive))


def can_go_on(record: PartitionRecord, me: Member, alive: Alive) -> bool:
    """Return whether the partition still has a leader once this broker has another generation.

    A partition in which only this broker is in sync continues with it
    (``scripts.electing.resume``).
    """
    if record.member(me.broker) != me or len(record.isr) == 1:
        return True
    return has_heir(record, me, alive)


def judge(
    damaged: PartitionRecord, others: Iterable[PartitionRecord], me: Member, alive: Alive
) -> Verdict:
    """Decide about one damaged replica; ``others`` are all records of this broker's replicas."""
    if not has_heir(damaged, me, alive):
        return Verdict.STAY
    if not all(can_go_on(each, me, alive) for each in others):
        return Verdict.WAIT
    return Verdict.LEAVE
