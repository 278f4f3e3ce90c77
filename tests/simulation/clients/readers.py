"""Readers of every level: ranges of one partition, and cuts through all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from isolog.errors import DataLoss, IsologError, OffsetEvicted, OffsetOutOfRange
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import CONSUMER_LEVELS, Isolation, upper_bound
from spark_stream.scripts.readers import find_cut
from spark_stream.wire.topic_messages import CutTopic
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients.asking import Session
from tests.simulation.fetching import SimulatedReader
from tests.simulation.history import Place
from tests.simulation.network import NoAnswer
from tests.simulation.schedule import NOW, Body, Signal, Within
from tests.simulation.world import World

_MORE: Final = (Isolation.READ_UNCOMMITTED,) * 2  # only they can lose records after they were read
_WAIT_S: Final = 3.0
_WAKING_S: Final = 30.0  # a broker that is busy wakes its readers a little later


def read_partitions(world: World, name: str) -> Body:
    """Follows a partition at one level, and waits where there is nothing more."""
    session = Session(world, name)
    isolation = session.chance.choice((*CONSUMER_LEVELS, *_MORE))
    for _ in range(session.chance.randint(1, 2)):
        yield from session.pause(3.0)
        picked = session.pick_partition()
        if picked is None:
            continue
        yield from follow(session, *picked, isolation, session.chance.randint(2, 5))


def follow(session: Session, topic: Topic, at: int, isolation: Isolation, times: int) -> Body:
    """Reads a partition from its start on, so many times, and waits for more in between."""
    world, place = session.world, (topic.id, at)
    reader = SimulatedReader(session, {place: (topic, 0, None)}, isolation)
    for _ in range(times):
        try:
            yield from reader.read(once=True)
            route = yield from session.route(topic, at)
            position = reader.position(place)
            yield from session.call_leader(
                topic,
                f"wait beyond {position} in {topic.name}/{at}",
                partial(_wait, world, topic, at, position, isolation),
                route,
            )
        except OffsetEvicted as error:
            world.tell(f"{session.name}: {error}")
            reader.go_back(place, error.details["log_start_offset"])
        except (DataLoss, OffsetOutOfRange) as error:
            world.tell(f"{session.name}: {error}")
            world.notice("told_of_loss", topic.id, at, isolation)
            reader.go_back(place, 0)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{session.name}: {error}")
            yield from session.pause(1.0)
            reader.go_on(place)


def read_cuts(world: World, name: str) -> Body:
    """Reads all topics up to one cut after the other."""
    session = Session(world, name)
    positions: dict[Place, int] = {}
    losses = 0
    for _ in range(session.chance.randint(2, 4)):
        yield from session.pause(4.0)
        topics = world.topics()
        # A reader cannot detect yet that a log has lost its records and has grown again since.
        if losses != world.history.losses:
            positions.clear()
        losses = world.history.losses
        try:
            yield from read_to_cut(session, topics, positions)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: {error}")
            positions.clear()


def read_to_cut(session: Session, topics: list[Topic], positions: dict[Place, int]) -> Body:
    """Reads on from these positions up to a cut through the topics, and moves them there."""
    offsets = yield from find_offsets(session, topics, positions)
    if offsets is not None:
        yield from read_up_to(session, topics, offsets, positions)


def find_offsets(session: Session, topics: list[Topic], positions: dict[Place, int]) -> Body:
    """A cut through the topics, from these positions on. None: logs have lost records since."""
    ranges = [
        CutTopic(
            topic=topic.name,
            topic_id=topic.id,
            lower={
                at: positions[topic.id, at]
                for at in range(topic.partitions)
                if (topic.id, at) in positions
            },
        )
        for topic in topics
    ]
    losses = session.world.history.losses
    found = yield from session.run("a cut", lambda _: find_cut(ranges))
    if losses != session.world.history.losses:
        return None
    offsets = {
        (topic.id, at): offset for topic in topics for at, offset in found[topic.name].items()
    }
    session.world.tell(f"{session.name}: the cut is {list(offsets.values())}")
    ids = {topic.id for topic in topics}
    present = {
        (topic.id, at): 0
        for topic in session.world.topics()
        if topic.id in ids
        for at in range(topic.partitions)
    }
    session.world.notice("cut", present | offsets)  # the cut may lack a new partition
    return offsets


def read_up_to(
    session: Session,
    topics: list[Topic],
    offsets: Mapping[Place, int],
    positions: dict[Place, int],
) -> Body:
    """Reads on from these positions up to these offsets, and moves them there."""
    wanted = {
        (topic.id, at): (topic, positions.get((topic.id, at), 0), offsets[topic.id, at])
        for topic in topics
        for at in range(topic.partitions)
        if (topic.id, at) in offsets
    }
    reader = SimulatedReader(session, wanted, Isolation.READ_COMMITTED)
    yield from reader.read()
    for place in wanted:
        positions[place] = max(reader.position(place), offsets[place])


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
        if upper_bound(partition.bounds(isolation), isolation) > position and partition.leads:
            yield Within(woken, _WAKING_S)
            world.notice("waited", f"{topic.name}/{at}", woken.given)
    finally:
        partition.stop_waiting(number)
