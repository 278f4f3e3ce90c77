"""Finds the leaders of partitions: asks any broker, and caches the answers.

``routes`` decides which answers count. This module makes the calls: one thread at a time asks about
a topic, and all that wait for the same topic get its answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.link import BrokerLink, seconds_left
from spark_stream.client.connecting.routes import Route, Routes
from spark_stream.environment import SystemMachine
from spark_stream.errors import (
    BrokerStopping,
    BrokerUnavailable,
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    RequestTimeout,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.topic_messages import FindLeaders, LeaderFacts

# After these errors the partition's leader has to be looked up again.
_DOUBTFUL: Final = (
    BrokerStopping,
    BrokerUnavailable,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    RequestTimeout,
    UnknownLeaderEpoch,
)
_NO_ANSWER: Final = (BrokerStopping, BrokerUnavailable, RequestTimeout)
LEFT_ALONE_S: Final = 10.0
"""For how long a follower that does not answer is not asked."""
OLD_S: Final = 60.0
"""After this time a reader with a rack asks again who is near."""


class _Topic:
    """A topic's routes; the thread that asks about it holds ``asking``."""

    def __init__(self, topic: str, topic_id: str) -> None:
        self.asking = new_lock(is_brief=False)
        self.routes = Routes(topic, topic_id)
        self.asked_at = -math.inf  # when it was last looked up


class Router:
    """The leaders of all partitions that a client uses; for any thread."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._lock = new_lock()  # the innermost: guards the topics and their routes
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._left_alone: dict[str, float] = {}  # until when

    @property
    def timeout_s(self) -> float:
        """How long a call and its retries may take, in seconds."""
        return self._connection.timeout_s

    def link(self, route: Route) -> BrokerLink:
        """Return the link to the route's broker."""
        return self._connection.to(route.leader, route.address)

    def link_to(self, broker_id: str, address: str) -> BrokerLink:
        """Return the link to a broker that a leader has named."""
        return self._connection.to(broker_id, address)

    def route(
        self, topic: str, topic_id: str, partition: int, timeout_s: float | None = None
    ) -> Route:
        """Return the route to the partition's leader.

        Raises:
            LeaderUnavailable: it has none now, or its present one is unknown: try again.
            UnknownTopic: there is no topic of this id.
            BrokerUnavailable, RequestTimeout: no broker answers.
        """
        known = self.known(topic, topic_id, partition)
        if known is not None:
            return known
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        with self._asking(topic, topic_id, deadline) as place:
            known = self.known(topic, topic_id, partition)  # another thread may have asked
            if known is not None:
                return known
            self._ask(place, topic, topic_id, seconds_left(deadline))
        known = self.known(topic, topic_id, partition)
        if known is None:
            raise self.no_leader(topic, partition)
        return known

    def near(self, route: Route) -> BrokerAddress | None:
        """Return the follower to ask in the leader's place; None: there is none, or it failed."""
        if self._connection.rack is None:
            return None
        with self._lock:
            place = self._topics.get((route.topic, route.topic_id))
            found = None if place is None else place.routes.near(route.partition)
            is_left_alone = found is not None and (
                time.monotonic() < self._left_alone.get(found.address, 0.0)
            )
            return None if is_left_alone else found

    def has_asked(self, topic: str, topic_id: str) -> bool:
        """Return whether a broker was asked who is near; leaders are learned in other ways too."""
        if self._connection.rack is None:
            return True
        with self._lock:
            place = self._topics.get((topic, topic_id))
            return place is not None and place.asked_at > -math.inf

    def take_look_up(self, topic: str, topic_id: str) -> bool:
        """Return True once a minute: the caller then looks up who is near."""
        if self._connection.rack is None:
            return False
        now = time.monotonic()
        with self._lock:
            place = self._topics.get((topic, topic_id))
            if place is None or now - place.asked_at < OLD_S:
                return False
            place.asked_at = now
            return True

    def no_leader(self, topic: str, partition: int) -> LeaderUnavailable:
        """Return the error for a partition without a known leader."""
        return LeaderUnavailable(
            f"{topic}/{partition} has no leader now, as far as {self._connection.address} knows",
            topic=topic,
            partition=partition,
        )

    def known(self, topic: str, topic_id: str, partition: int) -> Route | None:
        """Return the route to the leader if it is known, else None; make no call."""
        with self._lock:
            place = self._topics.get((topic, topic_id))
            return None if place is None else place.routes.get(partition)

    def refresh(self, topic: str, topic_id: str, timeout_s: float) -> None:
        """Ask who leads the topic's partitions now; raise as :meth:`route`."""
        deadline = time.monotonic() + timeout_s
        with self._asking(topic, topic_id, deadline) as place:
            self._ask(place, topic, topic_id, seconds_left(deadline))

    def learn_leader(self, topic: str, topic_id: str, facts: LeaderFacts) -> bool:
        """Add the leader that a broker named in another answer; return False if it is outdated."""
        self._connection.learn([facts.address])
        place = self._place(topic, topic_id)
        with self._lock:
            return place.routes.learn_leader(facts)

    def note_epoch(self, topic: str, topic_id: str, partition: int, epoch: int) -> bool:
        """Record a leader's answer in this epoch; return False if it was replaced since."""
        place = self._place(topic, topic_id)
        with self._lock:
            return place.routes.note_epoch(partition, epoch)

    def on_failed(
        self, route: Route, error: IsologError, near: BrokerAddress | None = None
    ) -> None:
        """Record a failed call along the route; if the leader may be why, ask before the next one.

        If the error names another leader, that one is used without asking. ``near``: the follower
        that was called. If it does not answer, that says nothing of the leader.
        """
        if near is not None and isinstance(error, _NO_ANSWER):
            with self._lock:
                self._left_alone[near.address] = time.monotonic() + LEFT_ALONE_S
            return
        if not isinstance(error, _DOUBTFUL):
            return
        place = self._place(route.topic, route.topic_id)
        with self._lock:
            place.routes.on_failed(route)
            if isinstance(error, NotLeader):
                named = _named(route.partition, error)
                if named is not None and named.leader != route.leader:
                    place.routes.learn_leader(named)

    def on_answer(self, route: Route, epoch: int | None) -> bool:
        """Record the answer of a route's broker in this epoch; return False if it was replaced."""
        if epoch is None or epoch == route.epoch:
            return True
        place = self._place(route.topic, route.topic_id)
        with self._lock:
            return place.routes.on_answer(route, epoch)

    def replaced(self, route: Route) -> bool:
        """Return whether another leader, or a later epoch of the same, is known by now."""
        with self._lock:
            place = self._topics.get((route.topic, route.topic_id))
            return place is not None and place.routes.replaced(route)

    @contextmanager
    def _asking(self, topic: str, topic_id: str, deadline: float) -> Iterator[_Topic]:
        """Let one thread ask about a topic; raise RequestTimeout if another asks for too long."""
        place = self._place(topic, topic_id)
        if not place.asking.acquire(timeout=seconds_left(deadline)):
            raise RequestTimeout(f"another thread asks for the leaders of topic {topic!r}")
        try:
            yield place
        finally:
            place.asking.release()

    def _place(self, topic: str, topic_id: str) -> _Topic:
        with self._lock:
            found = self._topics.get((topic, topic_id))
            if found is None:
                found = self._topics[topic, topic_id] = _Topic(topic, topic_id)
            return found

    def _ask(self, place: _Topic, topic: str, topic_id: str, timeout_s: float) -> None:
        rack = self._connection.rack
        machine = None if rack is None else SystemMachine().boot_id()
        with self._lock:
            place.asked_at = time.monotonic()
        asked = FindLeaders.of(topic=topic, topic_id=topic_id, rack=rack, machine=machine)
        try:
            found = self._connection.call(asked, timeout_s)
        except UnknownTopic:
            with self._lock:
                self._topics.pop((topic, topic_id), None)
            raise
        with self._lock:
            for each in found.partitions:
                if place.routes.learn_leader(each):
                    place.routes.learn_near(each)
        near = (each.near.address for each in found.partitions if each.near is not None)
        self._connection.learn([*near, *(each.address for each in found.partitions)])


def _named(partition: int, error: NotLeader) -> LeaderFacts | None:
    """Return the leader that the error names, or None."""
    leader, address = error.details.get("leader"), error.details.get("address")
    if not (isinstance(leader, str) and isinstance(address, str) and address):
        return None
    epoch = error.details.get("leader_epoch")
    return LeaderFacts(
        partition=partition,
        leader=leader,
        address=address,
        leader_epoch=epoch if isinstance(epoch, int) else None,
    )
