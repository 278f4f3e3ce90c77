"""The cluster as this broker sees it: members, live brokers, leaders, and its own lease.

A broker leads only while its own clock says that its lease lasts. If the process was paused and the
lease expired, other brokers may lead. The broker then takes a new lease, and leads again only after
it has read the records again.

While this broker cannot renew its lease, it probes the other brokers: each returns the partitions
that it leads. The probes, and their answers, continue for a lease's duration after the lease is
renewed, because the renewals of the others become visible only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.broker.host.host import Host
from spark_stream.cluster import brokers
from spark_stream.cluster.brokers import BrokerState, RegisteredBroker
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control.assignment import Racks
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.control.partition_record import Evidence, Led, PartitionRecord, is_led
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.environment import Clock
from spark_stream.errors import IsologError, StorageFailure
from spark_stream.loggers import logger_of
from spark_stream.scripts.steps import ReadLed, Script, together


class Members:
    """The brokers of one cluster, for any thread."""

    def __init__(self, view: ClusterView, leases: Leases) -> None:
        self._view = view
        self._leases = leases
        self._alive: dict[BrokerId, Generation] = {}
        self._looked_at: dict[BrokerId, str] = {}

    def check_alive(self) -> bool:
        """Check which brokers are alive. Return whether that has changed since the last check."""
        looked_at = {broker: each.incarnation for broker, each in self._view.now.brokers.items()}
        before, self._alive = self._alive, self.alive()
        self._looked_at = looked_at
        return before != self._alive

    @property
    def checked(self) -> Alive:
        """The living brokers at the last check."""
        return self._alive

    def generation_of(self, broker: BrokerId) -> Generation | None:
        """Return the broker's generation, or None if it was not alive at the last check.

        A broker that has started since then counts as alive: it may already be an in-sync replica
        of a topic that was created since.
        """
        known = self._view.now.brokers.get(broker)
        if known is not None and self._looked_at.get(broker) != known.incarnation:
            return known.generation
        return self._alive.get(broker)

    def get(self, broker: str) -> RegisteredBroker | None:
        """Return the broker, if it is registered."""
        return self._view.now.brokers.get(BrokerId(broker))

    def brokers(self) -> Sequence[RegisteredBroker]:
        """Return every registered broker."""
        return list(self._view.now.brokers.values())

    def is_alive(self, broker: str) -> bool:
        """Return whether the broker has a lease that may still last."""
        return self._leases.alive(broker)

    def registered(self) -> dict[BrokerId, Generation]:
        """Return every broker, with the generation of its logs that it registered last."""
        return {broker: each.generation for broker, each in self._view.now.brokers.items()}

    def alive(self) -> dict[BrokerId, Generation]:
        """Return the living brokers, each with the generation that it has registered."""
        return brokers.alive(self._view.now.brokers, self._leases.holder)

    def count_staying(self) -> int:
        """Return the number of brokers, dead ones included, that are not being decommissioned."""
        known = self._view.now.brokers.values()
        return sum(each.state is BrokerState.ACTIVE for each in known)

    def takers(self, alive: Alive) -> Racks:
        """Return the brokers of ``alive`` that may get replicas, with their racks.

        Brokers that are being decommissioned may not.
        """
        return {
            broker: each.rack
            for broker, each in self._view.now.brokers.items()
            if each.state is BrokerState.ACTIVE and broker in alive
        }


logger = logger_of(__name__)


class LeaseKeeper:
    """One incarnation's lease, from construction to :meth:`end`."""

    def __init__(
        self, leases: Leases, broker_id: str, incarnation: str, refresh: Callable[[], None]
    ) -> None:
        """Take the lease. ``refresh`` reads the records again, and acts on them."""
        self._leases = leases
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._refresh = refresh
        self._lease = leases.hold(broker_id, incarnation, None)
        self._has_looked = True  # whether the records were read since it has this lease
        self.failure: StorageFailure | None = None
        """The error of the last renewal, or None if it succeeded."""

    def serves(self) -> bool:
        """Return whether the broker may lead at this moment."""
        return self._has_looked and self._lease.may_serve()

    def renew(self) -> None:
        """Renew the lease. To be called several times before it expires."""
        try:
            self._renew()
        except StorageFailure as error:
            self.failure = error
            raise
        self.failure = None

    def _renew(self) -> None:
        if not self._lease.renew():
            if self._has_looked:
                logger.warning(
                    "lease expired; other brokers may take over this broker's partitions, except"
                    " where followers promised not to lead"
                )
            self._has_looked = False
            self._lease = self._leases.hold(self._broker_id, self._incarnation, self._lease)
        if not self._has_looked:
            self._refresh()
            self._has_looked = True

    def end(self) -> None:
        """Release the lease, so that other brokers see its end without a delay."""
        self._lease.release()


PROBE_S: Final = 0.5
"""The pause between two rounds of probes."""


class Observation(Struct, frozen=True):
    """The observed state of the cluster at one moment.

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
    """One broker's evidence that other brokers are alive. For any thread."""

    def __init__(self, host: Host, members: Members, leases: Leases, clock: Clock) -> None:
        self._host = host
        self._members = members
        self._leases = leases
        self._clock = clock
        self._probes_until = 0.0
        self._answers: dict[BrokerId, Led] = {}
        self.lease_keeper: LeaseKeeper | None = None
        """This broker's own lease, or None before it is taken."""

    def probing(self) -> Script[None]:
        """Probe the other brokers if this one cannot renew its lease, or recently could not."""
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

    def observe(self) -> Observation:
        """Return the cluster as this broker observes it at this moment."""
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
