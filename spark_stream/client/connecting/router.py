"""Finds the leaders of partitions by a call to any broker, and caches them.

``routes`` decides which answers count. This module makes the calls. One thread at a time looks up a
topic, and all threads that wait for the topic get its answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
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

# After these errors the leader of the partition is looked up again.
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
AVOIDED_S: Final = 10.0
"""A follower that does not answer gets no reads for this time."""
OLD_S: Final = 60.0
"""After this time a reader with a rack looks up the near followers again."""


class _Topic:
    """A topic's routes. The thread that looks them up holds ``asking``."""

    def __init__(self, topic: str, topic_id: str) -> None:
        self.asking = new_lock(is_brief=False)
        self.routes = Routes(topic, topic_id)
        self.asked_at = -math.inf  # when it was last looked up


class Router:
    """The leaders of all partitions that a client uses. Thread-safe."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._lock = new_lock()  # the innermost: guards the topics and their routes
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._avoided_until: dict[str, float] = {}  # until when

    @property
    def timeout_s(self) -> float:
        """The limit for a call with its retries, in seconds."""
        return self._connection.timeout_s

    def check_open(self) -> None:
        """Raise InvalidRequest if the client's connection was closed."""
        self._connection.check_open()

    def link(self, route: Route) -> BrokerLink:
        """Return the link to the route's broker."""
        return self._connection.to(route.leader, route.address)

    def link_to(self, broker_id: str, address: str) -> BrokerLink:
        """Return the link to a broker that a leader named."""
        return self._connection.to(broker_id, address)

    def route(
        self, topic: str, topic_id: str, partition: int, timeout_s: float | None = None
    ) -> Route:
        """Return the route to the partition's leader.

        Raises:
            LeaderUnavailable: The partition has no leader, or its leader was not found. Retry.
            UnknownTopic: No topic has this id.
            BrokerUnavailable, RequestTimeout: No broker answers.
        """
        known = self.known(topic, topic_id, partition)
        if known is not None:
            return known
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        with self._asking(topic, topic_id, deadline) as place:
            known = self.known(topic, topic_id, partition)  # another thread may have looked it up
            if known is not None:
                return known
            self._ask(place, topic, topic_id, seconds_left(deadline))
        known = self.known(topic, topic_id, partition)
        if known is None:
            raise self.no_leader(topic, partition)
        return known

    def near(self, route: Route) -> BrokerAddress | None:
        """Return the follower to read from instead of the leader. None if no usable one is near."""
        if self._connection.rack is None:
            return None
        with self._lock:
            place = self._topics.get((route.topic, route.topic_id))
            found = None if place is None else place.routes.near(route.partition)
            is_avoided = found is not None and (
                time.monotonic() < self._avoided_until.get(found.address, 0.0)
            )
            return None if is_avoided else found

    def was_looked_up(self, topic: str, topic_id: str) -> bool:
        """Return whether near followers were looked up. Leaders also come from other answers."""
        if self._connection.rack is None:
            return True
        with self._lock:
            place = self._topics.get((topic, topic_id))
            return place is not None and place.asked_at > -math.inf

    def claim_look_up(self, topic: str, topic_id: str) -> bool:
        """Return True once a minute. The caller then looks up the near followers."""
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
        """Return the error for a partition whose leader was not found."""
        return LeaderUnavailable(
            f"{topic}/{partition} has no leader according to the broker at"
            f" {self._connection.address}",
            topic=topic,
            partition=partition,
        )

    def known(self, topic: str, topic_id: str, partition: int) -> Route | None:
        """Return the cached route to the leader, or None. Make no call."""
        with self._lock:
            place = self._topics.get((topic, topic_id))
            return None if place is None else place.routes.get(partition)

    def refresh(self, topic: str, topic_id: str, timeout_s: float) -> None:
        """Look up the leaders of the topic's partitions. Raise the errors of :meth:`route`."""
        deadline = time.monotonic() + timeout_s
        with self._asking(topic, topic_id, deadline) as place:
            self._ask(place, topic, topic_id, seconds_left(deadline))

    def record_leader(self, topic: str, topic_id: str, facts: LeaderFacts) -> bool:
        """Add a leader that another answer named. Return False if it is outdated."""
        self._connection.add_brokers([facts.address])
        place = self._place(topic, topic_id)
        with self._lock:
            return place.routes.record_leader(facts)

    def record_epochs(self, topic: str, topic_id: str, epochs: Mapping[int, int]) -> set[int]:
        """Record the epochs in which leaders answered, by partition.

        Return the partitions with a newer leader.
        """
        place = self._place(topic, topic_id)
        with self._lock:
            record = place.routes.record_epoch
            return {number for number, epoch in epochs.items() if not record(number, epoch)}

    def on_failed(
        self, route: Route, error: IsologError, near: BrokerAddress | None = None
    ) -> None:
        """Record a failed call. If the leader may have moved, it is looked up before the next call.

        If the error names another leader, that one is used without a look-up. ``near``: the
        follower that was called. If a follower does not answer, the route to the leader stays
        valid.
        """
        if near is not None and isinstance(error, _NO_ANSWER):
            with self._lock:
                self._avoided_until[near.address] = time.monotonic() + AVOIDED_S
            return
        if not isinstance(error, _DOUBTFUL):
            return
        place = self._place(route.topic, route.topic_id)
        with self._lock:
            place.routes.on_failed(route)
            if isinstance(error, NotLeader):
                named = _named(route.partition, error)
                if named is not None and named.leader != route.leader:
                    place.routes.record_leader(named)

    def on_answer(self, route: Route, epoch: int | None) -> bool:
        """Record an answer in this epoch. Return False if a newer leader is known."""
        if epoch is None or epoch == route.epoch:
            return True
        place = self._place(route.topic, route.topic_id)
        with self._lock:
            return place.routes.on_answer(route, epoch)

    def replaced(self, route: Route) -> bool:
        """Return whether a newer leader, or a later epoch of the same leader, is cached."""
        with self._lock:
            place = self._topics.get((route.topic, route.topic_id))
            return place is not None and place.routes.replaced(route)

    @contextmanager
    def _asking(self, topic: str, topic_id: str, deadline: float) -> Iterator[_Topic]:
        """Hold a topic's look-up lock. Raise RequestTimeout if another thread keeps it."""
        place = self._place(topic, topic_id)
        if not place.asking.acquire(timeout=seconds_left(deadline)):
            raise RequestTimeout(
                f"another thread is still looking up the leaders of topic {topic!r}", topic=topic
            )
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
        request = FindLeaders.of(topic=topic, topic_id=topic_id, rack=rack, machine=machine)
        try:
            found = self._connection.call(request, timeout_s)
        except UnknownTopic:
            with self._lock:
                self._topics.pop((topic, topic_id), None)
            raise
        with self._lock:
            for each in found.partitions:
                if place.routes.record_leader(each):
                    place.routes.record_near(each)
        near = (each.near.address for each in found.partitions if each.near is not None)
        self._connection.add_brokers([*near, *(each.address for each in found.partitions)])


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
