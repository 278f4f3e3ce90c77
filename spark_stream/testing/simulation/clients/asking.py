"""How clients of a run ask brokers: one call, or one again and again."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from random import Random
from typing import Any

import pyarrow as pa

from spark_stream.client.connecting.routes import Route, Routes
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.producers import Stamp
from spark_stream.errors import (
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownOutcome,
)
from spark_stream.scripts.steps import Script
from spark_stream.testing.simulation.broker import SCHEMA, SimulatedBroker
from spark_stream.testing.simulation.history import Sent
from spark_stream.testing.simulation.network import NoAnswer
from spark_stream.testing.simulation.schedule import Body
from spark_stream.testing.simulation.world import World
from spark_stream.wire.messages import Ack, AppendTo, BatchRefused, Envelope

Ask = Callable[[SimulatedBroker], Body]
ATTEMPTS = 8
APPEND_MS = 3_000
_LIKED = 0.8  # how often the partition is chosen that clients like best
_ELSEWHERE = (NotLeader, LeaderUnavailable, LeaderEpochFenced, UnknownLeaderEpoch)


class Session:
    """What one client of a run needs; ``name`` is for the story."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance: Random = world.form.chance(name)
        self._sequences: dict[tuple[int, int, str, int], int] = {}
        self._routes: dict[str, Routes] = {}

    def any_broker(self) -> SimulatedBroker:
        return self.chance.choice(self.world.brokers)

    def call(self, broker: SimulatedBroker, what: str, ask: Ask) -> Body:
        """One call; raises NoAnswer, or what the broker answers."""
        name = f"{self.name}: {what}"
        return (yield from self.world.network.call(name, broker, lambda: ask(broker)))

    def run(self, what: str, script: Callable[[SimulatedBroker], Script[Any]]) -> Body:
        """Has any broker drive a script, again and again until one has answered.

        Raises:
            IsologError: what the broker answers.
            NoAnswer: none has, for as long as the client has patience.
        """
        for attempt in range(ATTEMPTS):
            broker = self.any_broker()
            try:
                return (yield from self.call(broker, what, lambda at: at.run(script(at))))
            except NoAnswer:
                self.world.tell(f"{self.name}: no answer to {what}")
            except IsologError as error:
                self.world.tell(f"{self.name}: {what}: {error.message}")
                if not error.retriable:
                    raise
            yield 0.5 * (attempt + 1) * self.chance.random()
        raise NoAnswer(what)

    def pause(self, seconds: float) -> Body:
        yield self.chance.random() * seconds

    # -- leaders -----------------------------------------------------------------------------------

    def route(self, topic: Topic, partition: int) -> Body:
        """The route to a partition's leader; it asks any broker where it knows none.

        Raises:
            NoAnswer: nobody leads it, or nobody says who.
            UnknownTopic: it is gone.
        """
        routes = self._routes.get(topic.id)
        if routes is None:
            routes = self._routes[topic.id] = Routes(topic.name, topic.id)
        known = routes.get(partition)
        if known is None:
            find = methodcaller("find_leaders", topic.name, topic.id)
            found = yield from self.call(self.any_broker(), f"leaders of {topic.name}", find)
            for facts in found:
                routes.told(facts)
            known = routes.get(partition)
        if known is None:
            raise NoAnswer(f"nobody leads {topic.name}/{partition}")
        return known

    def call_leader(self, topic: Topic, partition: int, what: str, ask: Ask, by: Route) -> Body:
        """One call along a route, which is doubted when it fails; as :meth:`call`."""
        try:
            return (yield from self.call(self.world.broker(by.leader), what, ask))
        except (*_ELSEWHERE, NoAnswer):
            self._routes[topic.id].failed(by)
            raise

    def answered(self, topic: Topic, route: Route, epoch: int | None) -> bool:
        """The leader has answered in this epoch; False: it is one that was replaced."""
        return epoch is None or self._routes[topic.id].answered(route, epoch)

    # -- appending ---------------------------------------------------------------------------------

    def pick_partition(self) -> tuple[Topic, int] | None:
        """A partition that is there now, if there is any topic."""
        topics = self.world.topics()
        if not topics:
            return None
        topic = self.chance.choice(topics)
        partition = self.chance.randrange(topic.partitions)
        favourite = self.world.favourite
        if favourite is not None and self.chance.random() < _LIKED:
            for each in topics:
                if each.id == favourite[0]:
                    return each, favourite[1]
        return topic, partition

    def stamp(self, producer_id: int, epoch: int, number: int, topic: Topic, at: int) -> Stamp:
        """The stamp of the producer's next batch in a partition."""
        key = (producer_id, epoch, topic.id, at)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return Stamp(producer_id, epoch, sequence, number)

    def send(
        self,
        topic: Topic,
        partition: int,
        stamp: Stamp | None,
        owner: str | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Body:
        """Sends one batch until it is acknowledged; returns whether it was.

        Without a stamp it is sent once.

        Raises:
            IsologError: why the leader refuses it.
        """
        waits = isolation is not Isolation.READ_UNCOMMITTED or owner is not None
        count = self.chance.randint(1, 3)
        sent = self.world.history.send(count, (topic.id, partition), stamp, committed=waits)
        for attempt in range(ATTEMPTS if stamp else 1):
            try:
                yield from self._send_once(sent, topic, owner, isolation)
                return True
            except NoAnswer as error:
                self.world.tell(f"{self.name}: no answer for {list(sent.values)}: {error}")
            except IsologError as error:
                self.world.tell(f"{self.name}: {list(sent.values)}: {error.message}")
                if not (error.retriable or isinstance(error, UnknownOutcome)):
                    raise
            yield 0.3 * (attempt + 1) * self.chance.random()
        return False

    def _send_once(self, sent: Sent, topic: Topic, owner: str | None, isolation: Isolation) -> Body:
        route = yield from self.route(topic, sent.place[1])
        leader = self.world.broker(route.leader)
        asked = AppendTo(
            topic=topic.name,
            topic_id=topic.id,
            transactional_id=owner,
            isolation=isolation,
            timeout_ms=APPEND_MS,
        )
        envelope = Envelope(partition=sent.place[1], stamp=sent.stamp, leader_epoch=route.epoch)
        batch = pa.record_batch([pa.array(sent.values, pa.int64())], schema=SCHEMA)

        def hear(ack: Ack) -> None:
            self.world.look_at(leader)
            self.world.tell(f"{leader.broker_id} answers {list(sent.values)}: {describe(ack)}")
            self.world.notice("acknowledged", sent, ack, leader)

        ack = yield from self.call_leader(
            topic,
            sent.place[1],
            f"append {list(sent.values)} to {topic.name}/{sent.place[1]}",
            lambda at: at.append(asked, envelope, batch, hear),
            route,
        )
        if isinstance(ack, BatchRefused):
            if isinstance(ack.error, _ELSEWHERE):
                self._routes[topic.id].failed(route)
            raise ack.error
        self.answered(topic, route, ack.leader_epoch)
        return ack


def describe(ack: Ack) -> str:
    """An acknowledgement, for people."""
    if isinstance(ack, BatchRefused):
        return ack.error.message
    return f"at {ack.offset}{' (it was there)' if ack.duplicate else ''}"
