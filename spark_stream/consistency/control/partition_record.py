"""A partition's record: its leader, the leader's epoch and the in-sync replicas (ISR).

The record is in the metadata store. Every change of it is one compare-and-set. ``election`` has the
valid changes.

**Generations.** A member of the ISR is a broker in a *generation* of its logs. A broker begins a
new generation when it starts and cannot be sure that its logs are complete: after an unclean end of
its machine, or when a log is damaged. The member of the old generation no longer exists. So the one
compare-and-set that puts the new generation on the broker's own record removes the broker from the
ISR of all its partitions, and a leader that adds the old generation to an ISR too late does no
harm.

**Evidence of life.** An election needs proof that a leader has stopped, so it counts a broker as
alive for as long as its lease may last (``cluster.stores.leases``). A view for an operator needs
the opposite, evidence of life (:func:`is_led`): while the metadata store takes no writes, the lease
of a dead broker never ends for an observer that cannot renew its own lease either. A broker is
alive if the observer saw it renew its lease within the lease's duration, or if it answered the
observer's last probe. The observer probes while it cannot renew its own lease, and for the duration
of a lease after that. A broker that renews its lease leads its partitions on record. One that only
answers may have stopped with its lease, so it leads the partitions in its answer
(``consistency.replication.promises``).

Source: Kafka's partition registration, KIP-903 (a stale broker epoch keeps a replica out of the
ISR) and KIP-966 (an unclean start ends membership).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch, Offset


class Member(NamedTuple):
    """An in-sync replica: a broker, in the generation of its logs in which it was in sync."""

    broker: BrokerId
    generation: Generation


class PartitionRecord(Struct, frozen=True):
    """A partition's record.

    ``replicas``: the brokers of all copies, the preferred leader first. ``adding``: those of
    ``replicas`` that a move adds. ``removing``: those that leave once the others are in sync. A
    broker in both was added by a move that a later move replaced. ``leader``: None while no replica
    can lead. ``trimmed``: readers get no record below this offset, of any replica.
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
        """Return whether this broker is the only member: others may lack committed entries."""
        return [each.broker for each in self.isr] == [broker]


Led = Mapping[str, frozenset[int]]
"""The partitions that a broker leads at a moment, as numbers by topic id."""


class Evidence(Struct, frozen=True):
    """An observer's evidence of one broker.

    ``renews``: whether the observer saw its lease change within the lease's duration. ``led``: its
    answer to the last probe, or None without an answer.
    """

    renews: bool
    led: Led | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the broker counts as alive."""
        return self.renews or self.led is not None


def is_led(
    leader: BrokerId | None, topic_id: str, number: int, seen: Mapping[BrokerId, Evidence]
) -> bool:
    """Return whether the leader on record leads the partition. ``seen``: evidence by broker."""
    evidence = None if leader is None else seen.get(leader)
    if evidence is None or evidence.renews:
        return evidence is not None
    return number in (evidence.led or {}).get(topic_id, ())
