"""A client's cache of the leaders of a topic's partitions. Pure: no clock, no call.

Some brokers have older metadata than others. So the leader epoch decides: an answer with an older
epoch than one that was seen is ignored, whichever broker gives it. A route that failed is suspect:
it is not used again until a broker has confirmed it or named another leader.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.topic_messages import LeaderFacts


class Route(Struct, frozen=True):
    """The leader of one partition: the broker's id and address, and its leader epoch.

    ``epoch`` is None until the leader has answered.
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
        self._epochs: dict[int, int] = {}  # the greatest seen
        self._suspect: set[int] = set()
        self._near: dict[int, BrokerAddress] = {}

    def get(self, partition: int) -> Route | None:
        """Return the route to use. None if it has to be looked up."""
        return None if partition in self._suspect else self._routes.get(partition)

    def record_leader(self, facts: LeaderFacts) -> bool:
        """Record a leader that a broker named, or return False if its epoch is outdated."""
        partition, epoch = facts.partition, facts.leader_epoch
        if epoch is not None:
            if epoch < self._epochs.get(partition, 0):
                return False
            self._epochs[partition] = epoch
        self._suspect.discard(partition)
        if facts.leader is None or not facts.address:
            self._routes.pop(partition, None)
            return True
        self._routes[partition] = Route(
            self._topic, self._topic_id, partition, facts.leader, facts.address, epoch
        )
        return True

    def near(self, partition: int) -> BrokerAddress | None:
        """Return the follower that is nearer than the leader, if one was found."""
        return self._near.get(partition)

    def record_near(self, facts: LeaderFacts) -> None:
        """Record the near follower, or its absence, from the answer of a look-up."""
        if facts.near is None:
            self._near.pop(facts.partition, None)
        else:
            self._near[facts.partition] = facts.near

    def on_failed(self, route: Route) -> None:
        """Mark the route of a failed call as suspect, unless it was replaced."""
        if self._routes.get(route.partition) == route:
            self._suspect.add(route.partition)

    def record_epoch(self, partition: int, epoch: int) -> bool:
        """Record that a leader answered in this epoch. Return False if a later epoch was seen."""
        if epoch < self._epochs.get(partition, 0):
            return False
        self._epochs[partition] = epoch
        return True

    def on_answer(self, route: Route, epoch: int) -> bool:
        """Record an answer of the route's leader. Return False if a later epoch was seen."""
        if not self.record_epoch(route.partition, epoch):
            return False
        if self._routes.get(route.partition) == route:
            self._routes[route.partition] = replace(route, epoch=epoch)
        return True

    def replaced(self, route: Route) -> bool:
        """Return whether a newer leader, or a later epoch of the same leader, is cached."""
        found = self.get(route.partition)
        if found is None or found.leader != route.leader:
            return found is not None
        return found.epoch is not None and route.epoch is not None and found.epoch > route.epoch
