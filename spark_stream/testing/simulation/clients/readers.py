"""Readers of every level: ranges of one partition, and cuts through all."""

from __future__ import annotations

from functools import partial
from typing import Final

from spark_stream.broker.fetching import FetchStream
from spark_stream.broker.waiting import WaitingReads
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import CONSUMER_LEVELS, Isolation, upper_bound
from spark_stream.errors import IsologError, OffsetEvicted
from spark_stream.scripts.cutting import CutRange, find_cut
from spark_stream.testing.simulation.broker import SimulatedBroker
from spark_stream.testing.simulation.clients.asking import Session
from spark_stream.testing.simulation.history import Place
from spark_stream.testing.simulation.invariants.base import Looked
from spark_stream.testing.simulation.network import NoAnswer
from spark_stream.testing.simulation.schedule import NOW, Body, Signal, Within
from spark_stream.testing.simulation.world import World
from spark_stream.wire.messages import EndFacts, Fetch

_WAIT_S: Final = 3.0
_WAKING_S: Final = 30.0  # a broker that is busy wakes its readers a little later


def read_partitions(world: World, name: str) -> Body:
    """Follows a partition at one level, and waits where there is nothing more."""
    session = Session(world, name)
    isolation = session.chance.choice(CONSUMER_LEVELS)
    for _ in range(session.chance.randint(1, 2)):
        yield from session.pause(3.0)
        picked = session.pick_partition()
        if picked is None:
            continue
        topic, at = picked
        position = 0
        for _ in range(session.chance.randint(2, 4)):
            try:
                position = yield from _read(session, topic, at, position, None, isolation)
                yield from session.call(
                    world.leader(topic.leader),
                    f"wait beyond {position} in {topic.name}/{at}",
                    partial(_wait, world, topic, at, position, isolation),
                )
            except OffsetEvicted as error:
                position = int(error.details["log_start_offset"])
            except (IsologError, NoAnswer) as error:
                world.tell(f"{name}: {error}")
                position = 0
                yield from session.pause(1.0)


def read_cuts(world: World, name: str) -> Body:
    """Reads all topics up to one cut after the other."""
    session = Session(world, name)
    positions: dict[Place, int] = {}
    losses = 0
    for _ in range(session.chance.randint(2, 4)):
        yield from session.pause(4.0)
        topics = world.topics()
        # Nothing tells a reader yet that a log has lost what it read, and has grown again since.
        if losses != world.history.losses:
            positions.clear()
        losses = world.history.losses
        try:
            yield from _read_to_cut(session, topics, positions)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: {error}")
            positions.clear()


def _read_to_cut(session: Session, topics: list[Topic], positions: dict[Place, int]) -> Body:
    ranges = [
        CutRange(
            topic.name,
            topic.id,
            {
                at: positions[topic.id, at]
                for at in range(topic.partitions)
                if (topic.id, at) in positions
            },
            {},
        )
        for topic in topics
    ]
    losses = session.world.history.losses
    found = yield from session.run("a cut", lambda _: find_cut(ranges))
    if losses != session.world.history.losses:
        return
    offsets = {
        (topic.id, at): offset for topic in topics for at, offset in found[topic.name].items()
    }
    session.world.tell(f"{session.name}: the cut is {list(offsets.values())}")
    session.world.notice("cut", offsets)
    for topic in topics:
        for at in found[topic.name]:
            place = (topic.id, at)
            start = positions.get(place, 0)
            if offsets[place] > start:
                yield from _read(
                    session, topic, at, start, offsets[place], Isolation.READ_COMMITTED
                )
            positions[place] = max(start, offsets[place])


def _read(
    session: Session, topic: Topic, at: int, start: int, end: int | None, isolation: Isolation
) -> Body:
    """Reads what there is from ``start`` on; where to go on."""
    asked = Fetch(
        topic=topic.name, topic_id=topic.id, partition=at, start=start, end=end, isolation=isolation
    )
    world = session.world
    return (
        yield from session.call(
            world.leader(topic.leader),
            f"read {topic.name}/{at} from {start} ({isolation.value})",
            lambda broker: _fetch(world, broker, asked, (topic.id, at)),
        )
    )


def _fetch(world: World, broker: SimulatedBroker, asked: Fetch, place: Place) -> Body:
    """As DoGet: answer by answer, with anything in between."""
    yield NOW
    stream = FetchStream(broker.host, asked, lambda: False, WaitingReads(world.clock), 0.0)
    position = asked.start
    values: list[int] = []
    for batch, facts in stream.answers():
        if batch.num_rows:
            values += batch.column(0).to_pylist()
            yield NOW
        else:
            last = EndFacts.from_bytes(facts)
    end = int(last.next)
    world.look_at(broker)
    line = world.history.lines[place]
    if not line.deleted:
        read = Looked(line, asked.isolation, position, end, values)
        world.notice("looked", read)
        if asked.isolation is Isolation.READ_ATOMIC:
            world.notice("cut", {place: end})
    return end


def _wait(
    world: World,
    topic: Topic,
    at: int,
    position: int,
    isolation: Isolation,
    broker: SimulatedBroker,
) -> Body:
    """Waits for more than there is, for a while."""
    yield NOW
    partition = broker.host.topic(topic.name, topic.id).partition(at)
    woken = Signal(world.schedule)
    number = partition.wait_beyond(Offset(position), isolation, woken.give)
    if number is None:
        return
    try:
        yield Within(woken, _WAIT_S)
        if upper_bound(partition.bounds(isolation), isolation) > position:
            yield Within(woken, _WAKING_S)
            world.notice("waited", f"{topic.name}/{at}", woken.given)
    finally:
        partition.stop_waiting(number)
