"""The leaders of a topic's partitions, as far as a client knows. Pure: no clock, no call.

Some brokers know less than others. So the leader epoch decides: an answer with an older epoch than
one that was seen is ignored, whichever broker gives it. A route that failed is doubted: it is not
used again before a broker was asked and has confirmed it or named another leader.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.topic_messages import LeaderFacts


class Route(Struct, frozen=True):
    """The leader of one partition: the broker's id and address, and its leader epoch.

    ``epoch`` is None if only the leader can tell it.
    """

    topic: str
    topic_id: str
    partition: int
    leader: str
    address: str
    epoch: int | None


class Routes:
    """The routes of one topic. Not thread-safe."""

    def __init__(self, topic: str, topic_id: str) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._routes: dict[int, Route] = {}
        self._epochs: dict[int, int] = {}  # the greatest that was seen
        self._doubted: set[int] = set()
        self._near: dict[int, BrokerAddress] = {}

    def get(self, partition: int) -> Route | None:
        """Return the route to use; None if a broker has to be asked."""
        return None if partition in self._doubted else self._routes.get(partition)

    def learn_leader(self, facts: LeaderFacts) -> bool:
        """Use what a broker says; return False, and change nothing, if its epoch is older."""
        partition, epoch = facts.partition, facts.leader_epoch
        if epoch is not None:
            if epoch < self._epochs.get(partition, 0):
                return False
            self._epochs[partition] = epoch
        self._doubted.discard(partition)
        if facts.leader is None or not facts.address:
            self._routes.pop(partition, None)
            return True
        self._routes[partition] = Route(
            self._topic, self._topic_id, partition, facts.leader, facts.address, epoch
        )
        return True

    def near(self, partition: int) -> BrokerAddress | None:
        """Return the follower that is nearer than the leader, as far as it is known."""
        return self._near.get(partition)

    def learn_near(self, facts: LeaderFacts) -> None:
        """Use what a broker says that was asked who is near."""
        if facts.near is None:
            self._near.pop(facts.partition, None)
        else:
            self._near[facts.partition] = facts.near

    def on_failed(self, route: Route) -> None:
        """Doubt a route along which a call failed, unless it was replaced."""
        if self._routes.get(route.partition) == route:
            self._doubted.add(route.partition)

    def note_epoch(self, partition: int, epoch: int) -> bool:
        """Record that a leader answered in this epoch; return False if it was replaced since."""
        if epoch < self._epochs.get(partition, 0):
            return False
        self._epochs[partition] = epoch
        return True

    def on_answer(self, route: Route, epoch: int) -> bool:
        """Record an answer of the route's leader; return False if it was replaced since."""
        if not self.note_epoch(route.partition, epoch):
            return False
        if self._routes.get(route.partition) == route:
            self._routes[route.partition] = replace(route, epoch=epoch)
        return True

    def replaced(self, route: Route) -> bool:
        """Return whether another leader, or a later epoch of the same, is known by now."""
        found = self.get(route.partition)
        if found is None or found.leader != route.leader:
            return found is not None
        return found.epoch is not None and route.epoch is not None and found.epoch > route.epoch
