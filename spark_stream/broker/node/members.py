"""The brokers of the cluster as this one sees them: who is registered, and who is alive."""

from __future__ import annotations

from collections.abc import Sequence

from spark_stream.cluster import brokers
from spark_stream.cluster.brokers import BrokerState, RegisteredBroker
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control.assignment import Racks
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.ids import BrokerId, Generation


class Members:
    """The brokers of one cluster, for any thread."""

    def __init__(self, view: ClusterView, leases: Leases) -> None:
        self._view = view
        self._leases = leases
        self._alive: dict[BrokerId, Generation] = {}
        self._looked_at: dict[BrokerId, str] = {}

    def look(self) -> bool:
        """Check which brokers are alive. Return whether that has changed since the last check."""
        looked_at = {broker: each.incarnation for broker, each in self._view.now.brokers.items()}
        before, self._alive = self._alive, self.alive()
        self._looked_at = looked_at
        return before != self._alive

    def generation_of(self, broker: BrokerId) -> Generation | None:
        """Return the broker's generation, or None if it was not alive at the last check.

        One that has started since then counts as alive: it may be in sync with a new topic.
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
        """Return how many brokers there are, dead ones included, except those that leave."""
        known = self._view.now.brokers.values()
        return sum(each.state is BrokerState.ACTIVE for each in known)

    def takers(self, alive: Alive) -> Racks:
        """Return those of ``alive`` that may get replicas (not those that leave), with racks."""
        return {
            broker: each.rack
            for broker, each in self._view.now.brokers.items()
            if each.state is BrokerState.ACTIVE and broker in alive
        }
