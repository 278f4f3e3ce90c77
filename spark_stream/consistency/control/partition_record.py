"""A partition's record: who leads it, in which epoch, and which replicas are in sync.

The record is in the metadata store. Every change of it is one compare-and-set; ``election`` has
the changes that are allowed.

**Generations.** A member of the ISR is a broker in a *generation* of its logs. A broker begins a
new generation when it starts and cannot be sure that its logs are complete: after an unclean end of
its machine, or when a log is damaged. The member of the old generation no longer exists. So the one
compare-and-set that puts the new generation on the broker's own record removes the broker from the
ISR of all its partitions at once, and a leader that adds the old generation to an ISR too late does
no harm.

Source: Kafka's partition registration; KIP-903 (a stale broker epoch keeps a replica out of the
ISR) and KIP-966 (an unclean start ends membership).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch, Offset


class Member(NamedTuple):
    """An in-sync replica: a broker, in the generation of its logs in which it was in sync."""

    broker: BrokerId
    generation: Generation


class PartitionRecord(Struct, frozen=True):
    """What all brokers know of a partition.

    ``replicas``: the brokers that should have a copy, the preferred leader first. ``adding``: those
    of ``replicas`` that a move adds; ``removing``: those that leave once the others are in sync.
    A broker in both was being added by a move that a later move replaced. ``leader``: None while
    no replica can lead. ``trimmed``: readers get no record below this offset, of any replica.
    """

    replicas: tuple[BrokerId, ...]
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    isr: tuple[Member, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    trimmed: Offset = Offset(0)

    def member(self, broker: BrokerId) -> Member | None:
        """Return the broker as a member of the ISR, or None if it is not in it."""
        return next((each for each in self.isr if each.broker == broker), None)

    def is_only_member(self, broker: BrokerId) -> bool:
        """Return whether only this broker is in sync: others need not have what is committed."""
        return [each.broker for each in self.isr] == [broker]
