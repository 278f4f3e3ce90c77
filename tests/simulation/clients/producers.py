"""A producer that writes outside transactions, with a separate id or without one."""

from __future__ import annotations

from isolog.errors import IsologError
from spark_stream.client.writing.lanes import ProducerIdentity
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import PRODUCER_LEVELS, Isolation
from spark_stream.scripts.steps import Numbering, TakeNumber
from tests.simulation.clients.asking import Session
from tests.simulation.network import NoAnswer
from tests.simulation.producing import SimulatedProducer
from tests.simulation.schedule import Body
from tests.simulation.world import World


def write_plainly(world: World, name: str) -> Body:
    """Some batches to any partitions, which may wait for each other or not."""
    session = Session(world, name)
    level = session.chance.choice(PRODUCER_LEVELS)
    producer = None
    if session.chance.random() < 0.8:
        producer = SimulatedProducer(session, lambda: _identity(session), level)
    for number in range(session.chance.randint(3, 8)):
        if session.chance.random() < 0.6:
            yield from session.pause(2.0)
        picked = session.pick_partition()
        if picked is None:
            continue
        sending = _send(session, producer, *picked, level)
        if session.chance.random() < 0.5:
            world.start_client(f"{name} batch {number}", sending)
        else:
            yield from sending
    if producer is not None:
        producer.close()


def _send(
    session: Session,
    producer: SimulatedProducer | None,
    topic: Topic,
    at: int,
    level: Isolation,
) -> Body:
    try:
        yield from session.send(producer, topic, at, level)
    except (IsologError, NoAnswer):
        return


def _identity(session: Session) -> Body:
    taken = yield from session.run("a producer id", lambda _: iter(TakeNumber(Numbering.PRODUCERS)))
    return ProducerIdentity(taken, 0)
