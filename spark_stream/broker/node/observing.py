"""The cluster as this broker observes it. All views of brokers and leaders use it.

While this broker cannot renew its lease, it probes the other brokers: each returns the partitions
that it leads. Answers count for a lease's duration after that, until the renewals of the others are
seen again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.broker.host.host import Host
from spark_stream.broker.node.lease import LeaseKeeper
from spark_stream.broker.node.members import Members
from spark_stream.cluster.stores.leases import Leases
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.control.partition_record import Evidence, Led, PartitionRecord, is_led
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.environment import Clock
from spark_stream.errors import IsologError, StorageFailure
from spark_stream.scripts.steps import ReadLed, Script, together

PROBE_S: Final = 0.5
"""The pause between two rounds of probes."""


class Observation(Struct, frozen=True):
    """One look at the cluster.

    ``alive``: the brokers with evidence of life, and their generations. ``failure``: the error of
    the metadata store, if this broker cannot read the leases or renew its own.
    """

    alive: Alive
    seen: dict[BrokerId, Evidence]
    failure: StorageFailure | None

    def leads(self, topic_id: str, number: int, record: PartitionRecord) -> bool:
        """Return whether the partition's leader on record leads it."""
        return is_led(record.leader, topic_id, number, self.seen)

    def in_sync(self, record: PartitionRecord) -> PartitionRecord:
        """Return the record without dead brokers in its ISR.

        The ISR on record keeps them while the metadata store takes no changes.
        """
        isr = tuple(each for each in record.isr if each.broker in self.alive)
        return record if len(isr) == len(record.isr) else replace(record, isr=isr)


class Observer:
    """One broker's evidence of the others. From any thread."""

    def __init__(self, host: Host, members: Members, leases: Leases, clock: Clock) -> None:
        self._host = host
        self._members = members
        self._leases = leases
        self._clock = clock
        self._probes_until = 0.0
        self._answers: dict[BrokerId, Led] = {}
        self.lease_keeper: LeaseKeeper | None = None
        """This broker's own lease; None before it is taken."""

    def probing(self) -> Script[None]:
        """Probe the other brokers if this one cannot renew its lease, or could not lately."""
        now = self._clock.monotonic()
        if self._leases.is_overdue():
            self._probes_until = now + self._leases.duration_s
        if now >= self._probes_until:
            self._answers = {}
            return
        me, registered = self._host.broker_id, self._members.registered()
        others = [each for each in registered if each != me]
        answers = yield from together(ReadLed(each) for each in others)
        self._answers = {
            broker: {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
            for broker, found in zip(others, answers, strict=True)
            if not isinstance(found, IsologError)
        }

    def look(self) -> Observation:
        """Return the cluster as it is for this broker now."""
        failure = None if self.lease_keeper is None else self.lease_keeper.failure
        brokers = self._members.brokers()
        holders: Alive = self._members.registered()
        try:
            holders = self._members.alive()
        except StorageFailure as error:
            failure = error
        seen: dict[BrokerId, Evidence] = {}
        alive: dict[BrokerId, Generation] = {}
        for each in brokers:
            broker = BrokerId(each.id)
            renews = broker in holders and self._leases.is_renewed(broker, each.incarnation)
            led = self._answers.get(broker)
            if broker == self._host.broker_id:
                renews = self.lease_keeper is not None and self.lease_keeper.serves()
                led = self._host.led_numbers()
            seen[broker] = Evidence(renews, led)
            if seen[broker].is_alive:
                alive[broker] = each.generation
        return Observation(alive, seen, failure)
