"""A producer that writes outside transactions, with an id of its own or without."""

from __future__ import annotations

from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.errors import IsologError
from spark_stream.scripts.steps import Numbering, TakeNumber
from spark_stream.testing.simulation.clients.asking import Session
from spark_stream.testing.simulation.network import NoAnswer
from spark_stream.testing.simulation.schedule import Body
from spark_stream.testing.simulation.world import World


def write_plainly(world: World, name: str) -> Body:
    """Some batches to any partitions; after an error that repeating cannot mend, under a new id."""
    session = Session(world, name)
    producer = -1
    level = session.chance.choice(PRODUCER_LEVELS)
    for _ in range(session.chance.randint(3, 8)):
        yield from session.pause(2.0)
        picked = session.pick_partition()
        if picked is None:
            continue
        topic, at = picked
        try:
            if producer < 0 and session.chance.random() < 0.7:
                producer = yield from session.run(
                    "a producer id", lambda _: iter(TakeNumber(Numbering.PRODUCERS))
                )
            stamp = None
            if producer >= 0:
                stamp = session.stamp(producer, 0, NO_TRANSACTION, topic, at)
            if not (yield from session.send(topic, at, stamp, isolation=level)):
                producer = -1
        except (IsologError, NoAnswer):
            producer = -1
