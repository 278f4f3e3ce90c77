"""How clients of a run ask brokers: one call, or one again and again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa

from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.producers import Stamp
from spark_stream.errors import IsologError, from_wire
from spark_stream.scripts.steps import Script
from spark_stream.testing.simulation.broker import SCHEMA, SimulatedBroker
from spark_stream.testing.simulation.history import Sent
from spark_stream.testing.simulation.network import NoAnswer
from spark_stream.testing.simulation.schedule import Body
from spark_stream.testing.simulation.world import World
from spark_stream.wire.messages import Ack, AppendTo, Envelope, StampFacts

Ask = Callable[[SimulatedBroker], Body]
ATTEMPTS = 6


class Session:
    """What one client of a run needs; ``name`` is for the story."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance: Random = world.form.chance(name)
        self._sequences: dict[tuple[int, int, str, int], int] = {}

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

    # -- appending ---------------------------------------------------------------------------------

    def pick_partition(self) -> tuple[Topic, int] | None:
        """A partition that is there now, if there is any topic."""
        topics = self.world.topics()
        if not topics:
            return None
        topic = self.chance.choice(topics)
        return topic, self.chance.randrange(topic.partitions)

    def stamp(self, producer_id: int, epoch: int, number: int, topic: Topic, at: int) -> Stamp:
        """The stamp of the producer's next batch in a partition."""
        key = (producer_id, epoch, topic.id, at)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return Stamp(producer_id, epoch, sequence, number)

    def send(
        self, topic: Topic, partition: int, stamp: Stamp | None, owner: str | None = None
    ) -> Body:
        """Sends one batch until it is acknowledged; returns whether it was.

        Without a stamp it is sent once.

        Raises:
            IsologError: why the leader refuses it.
        """
        sent = self.world.history.send(self.chance.randint(1, 3), (topic.id, partition), stamp)
        for attempt in range(ATTEMPTS if stamp else 1):
            try:
                yield from self._send_once(sent, topic, owner)
                return True
            except NoAnswer:
                self.world.tell(f"{self.name}: no answer for {list(sent.values)}")
            except IsologError as error:
                self.world.tell(f"{self.name}: {list(sent.values)}: {error.message}")
                if not error.retriable:
                    raise
            yield 0.3 * (attempt + 1) * self.chance.random()
        return False

    def _send_once(self, sent: Sent, topic: Topic, owner: str | None) -> Body:
        leader = self.world.leader(topic.leader)
        asked = AppendTo(topic=topic.name, topic_id=topic.id, transactional_id=owner)
        stamp = sent.stamp
        facts = None
        if stamp is not None:
            facts = StampFacts(
                producer_id=stamp.producer_id,
                epoch=stamp.epoch,
                sequence=stamp.sequence,
                transaction=None if stamp.transaction == NO_TRANSACTION else stamp.transaction,
            )
        envelope = Envelope(partition=sent.place[1], stamp=facts)
        batch = pa.record_batch([pa.array(sent.values, pa.int64())], schema=SCHEMA)

        def hear(ack: Ack) -> None:
            self.world.look_at(leader)
            self.world.tell(f"{leader.broker_id} answers {list(sent.values)}: {describe(ack)}")
            partition = self.world.partition(sent.place)
            self.world.notice("acknowledged", sent, ack, partition)

        ack = yield from self.call(
            leader,
            f"append {list(sent.values)} to {topic.name}/{sent.place[1]}",
            lambda at: at.append(asked, envelope, batch, hear),
        )
        if ack.error is not None:
            raise from_wire(ack.error)
        return ack


def describe(ack: Ack) -> str:
    """An acknowledgement, for people."""
    if ack.error is not None:
        return str(ack.error.get("message", ack.error))
    return f"at {ack.offset}{' (it was there)' if ack.duplicate else ''}"
