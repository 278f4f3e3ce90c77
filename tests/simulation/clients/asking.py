"""The calls of a run's clients: one call, or retries."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from random import Random
from typing import Any

from isolog.errors import (
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    UnknownLeaderEpoch,
    UnknownOutcome,
)
from spark_stream.client.connecting.routes import Route, Routes
from spark_stream.client.writing.lanes import Unacknowledged
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Isolation
from spark_stream.scripts.steps import Script
from spark_stream.wire.stream_messages import AppendTo
from tests.simulation.broker import SimulatedBroker
from tests.simulation.history import Sent
from tests.simulation.network import NoAnswer
from tests.simulation.producing import BatchFate, SimulatedProducer, send_once
from tests.simulation.schedule import Body
from tests.simulation.world import World

Ask = Callable[[SimulatedBroker], Body]
ATTEMPTS = 8
APPEND_MS = 3_000
_LIKED = 0.8  # how often the partition is chosen that clients like best
_ELSEWHERE = (NotLeader, LeaderUnavailable, LeaderEpochFenced, UnknownLeaderEpoch)


class Session:
    """The context of one client of a run. ``name`` is for the story."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance: Random = world.form.chance(name)
        racks = [each.broker_id for each in world.brokers]  # each broker has a separate rack
        self.rack: str | None = world.form.chance(f"{name} rack").choice(
            [*racks, *[None] * len(racks)]
        )
        self._routes: dict[str, Routes] = {}

    def any_broker(self) -> SimulatedBroker:
        return self.chance.choice(self.world.brokers)

    def call(self, broker: SimulatedBroker, what: str, ask: Ask) -> Body:
        """One call. Raises NoAnswer, or what the broker answers."""
        name = f"{self.name}: {what}"
        return (yield from self.world.network.call(name, broker, lambda: ask(broker)))

    def run(self, what: str, script: Callable[[SimulatedBroker], Script[Any]]) -> Body:
        """Lets any broker drive a script, with retries until one has answered.

        Raises:
            IsologError: what the broker answers.
            NoAnswer: no broker has, within the client's patience.
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
        """The route to a partition's leader. It looks the leader up at any broker.

        Raises:
            NoAnswer: it has no leader, or no broker answers.
            UnknownTopic: it was deleted.
        """
        routes = self._routes.get(topic.id)
        if routes is None:
            routes = self._routes[topic.id] = Routes(topic.name, topic.id)
        known = routes.get(partition)
        if known is None:
            find = methodcaller("find_leaders", topic.name, topic.id, self.rack)
            found = yield from self.call(self.any_broker(), f"leaders of {topic.name}", find)
            for facts in found:
                if routes.record_leader(facts):
                    routes.record_near(facts)
            known = routes.get(partition)
        if known is None:
            raise NoAnswer(f"nobody leads {topic.name}/{partition}")
        return known

    def near(self, route: Route) -> str | None:
        """The follower that is nearer than the leader of the route."""
        found = self._routes[route.topic_id].near(route.partition)
        return None if found is None else found.id

    def call_leader(self, topic: Topic, what: str, ask: Ask, by: Route) -> Body:
        """One call along a route, which is doubted when it fails. As :meth:`call`."""
        try:
            return (yield from self.call(self.world.broker(by.leader), what, ask))
        except (*_ELSEWHERE, NoAnswer):
            self._routes[topic.id].on_failed(by)
            raise

    def doubt(self, route: Route) -> None:
        """A call along a route failed."""
        self._routes[route.topic_id].on_failed(route)

    def answered(self, route: Route, epoch: int) -> None:
        """A leader has answered in this epoch."""
        self._routes[route.topic_id].on_answer(route, epoch)

    # -- appending ---------------------------------------------------------------------------------

    def pick_partition(self) -> tuple[Topic, int] | None:
        """An existing partition, if there is any topic."""
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

    def send(
        self,
        producer: SimulatedProducer | None,
        topic: Topic,
        partition: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        in_transaction: bool = False,
    ) -> Body:
        """Send one batch and wait. Return whether it was acknowledged.

        Without a producer it is sent once, without a stamp.

        Raises:
            IsologError: why the leader refuses it.
        """
        waits = isolation is not Isolation.READ_UNCOMMITTED or in_transaction
        count, place = self.chance.randint(1, 3), (topic.id, partition)
        number = None if producer is None else producer.number
        sent = self.world.history.send(
            count,
            place,
            producer=number,
            committed=waits,
            client=self.name,
            part=producer.part if producer is not None and in_transaction else None,
        )
        if producer is None:
            request = AppendTo(
                topic=topic.name, topic_id=topic.id, isolation=isolation, timeout_ms=APPEND_MS
            )
            written = yield from self._send_once(sent, topic, request)
        else:
            written = producer.submit(topic, partition, sent.values)
        yield written.settled
        settlement = written.settlement
        assert settlement is not None
        self.world.notice("settled", sent, settlement)
        if not isinstance(settlement, Unacknowledged):
            return True
        error = settlement.error
        self.world.tell(f"{self.name}: {list(sent.values)}: {error.message}")
        if not (error.retriable or isinstance(error, UnknownOutcome)):
            raise error
        return False

    def _send_once(self, sent: Sent, topic: Topic, request: AppendTo) -> Body:
        partition = sent.place[1]
        route = yield from self.route(topic, partition)
        written = BatchFate(self)
        send_once(self, route, request, sent.values, written)
        return written
