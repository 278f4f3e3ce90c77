"""Who leads the partitions of a topic, as far as a client knows. Pure: no clock, no call.

Brokers answer from what they know, and some know less than others. So what counts is the leader
epoch: an answer of an older epoch than one that was seen is not believed, whoever gives it. A route
that failed is doubted: it is not used again before somebody was asked, and has confirmed it or
named another.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.wire.messages import LeaderFacts


class Route(Struct, frozen=True):
    """To the leader of one partition: the broker's id and address, and its leader epoch.

    ``epoch`` is None where only the leader can tell it.
    """

    topic: str
    topic_id: str
    partition: int
    leader: str
    address: str
    epoch: int | None


class Routes:
    """Of one topic. One thread at a time."""

    def __init__(self, topic: str, topic_id: str) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._routes: dict[int, Route] = {}
        self._epochs: dict[int, int] = {}  # the greatest that was seen
        self._doubted: set[int] = set()

    def get(self, partition: int) -> Route | None:
        """The route to use; None: somebody has to be asked."""
        return None if partition in self._doubted else self._routes.get(partition)

    def told(self, facts: LeaderFacts) -> bool:
        """Take up what a broker says; return False, and change nothing, if its epoch is older."""
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

    def failed(self, route: Route) -> None:
        """A call along the route failed: it is doubted, unless there is another by now."""
        if self._routes.get(route.partition) == route:
            self._doubted.add(route.partition)

    def seen(self, partition: int, epoch: int) -> bool:
        """A leader has answered in this epoch; False: it was replaced, and does not know yet."""
        if epoch < self._epochs.get(partition, 0):
            return False
        self._epochs[partition] = epoch
        return True

    def answered(self, route: Route, epoch: int) -> bool:
        """The leader has answered in this epoch; False: as :meth:`seen`."""
        if not self.seen(route.partition, epoch):
            return False
        if self._routes.get(route.partition) == route:
            self._routes[route.partition] = replace(route, epoch=epoch)
        return True

    def replaced(self, route: Route) -> bool:
        """Whether another leader, or a later epoch of the same, is known by now."""
        found = self.get(route.partition)
        if found is None or found.leader != route.leader:
            return found is not None
        return found.epoch is not None and route.epoch is not None and found.epoch > route.epoch
