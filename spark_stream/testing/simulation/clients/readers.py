"""Readers of every level: ranges of one partition, and cuts through all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from spark_stream.broker.fetch_task import AwaitRecords
from spark_stream.broker.fetching import RangeStream
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import CONSUMER_LEVELS, Isolation, upper_bound
from spark_stream.consistency.lineage import NOTHING_KNOWN
from spark_stream.errors import DataLoss, IsologError, OffsetEvicted, OffsetOutOfRange
from spark_stream.scripts.cutting import CutRange, find_cut
from spark_stream.testing.simulation.broker import SimulatedBroker
from spark_stream.testing.simulation.clients.asking import Session
from spark_stream.testing.simulation.history import Place
from spark_stream.testing.simulation.invariants.base import Looked
from spark_stream.testing.simulation.network import NoAnswer
from spark_stream.testing.simulation.schedule import NOW, Body, Signal, Within
from spark_stream.testing.simulation.world import World
from spark_stream.wire.fetch_messages import EndFacts, FetchRange, fetch_answer

_MORE: Final = (Isolation.READ_UNCOMMITTED,) * 2  # only they can lose what they have read
_WAIT_S: Final = 3.0
_WAKING_S: Final = 30.0  # a broker that is busy wakes its readers a little later


class _Reading:
    """A reader of one partition: where it is, with which lineage, and what it got."""

    def __init__(self, topic: Topic, at: int) -> None:
        self.topic = topic
        self.at = at
        self.position = 0
        self.lineage = NOTHING_KNOWN
        self.got: list[int] = []

    def go_back(self, offset: int) -> None:
        """To where its records are the leader's."""
        self.position, self.lineage = offset, NOTHING_KNOWN
        self.got = []


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
    world, reading = session.world, _Reading(topic, at)
    for _ in range(times):
        try:
            yield from _read(session, reading, None, isolation)
            route = yield from session.route(topic, at)
            yield from session.call_leader(
                topic,
                at,
                f"wait beyond {reading.position} in {topic.name}/{at}",
                partial(_wait, world, reading, isolation),
                route,
            )
        except OffsetEvicted as error:
            world.tell(f"{session.name}: {error}")
            reading.go_back(error.details["log_start_offset"])
        except (DataLoss, OffsetOutOfRange) as error:
            world.tell(f"{session.name}: {error}")
            world.notice("told_of_loss", topic.id, at, isolation)
            reading.go_back(0)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{session.name}: {error}")
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
    """A cut through the topics, from these positions on; None: logs have lost records meanwhile."""
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
        return None
    offsets = {
        (topic.id, at): offset for topic in topics for at, offset in found[topic.name].items()
    }
    session.world.tell(f"{session.name}: the cut is {list(offsets.values())}")
    session.world.notice("cut", offsets)
    return offsets


def read_up_to(
    session: Session,
    topics: list[Topic],
    offsets: Mapping[Place, int],
    positions: dict[Place, int],
) -> Body:
    """Reads on from these positions up to these offsets, and moves them there."""
    for topic in topics:
        for at in range(topic.partitions):
            place = (topic.id, at)
            if place not in offsets:
                continue
            reading = _Reading(topic, at)
            reading.position = positions.get(place, 0)
            short = False
            while reading.position < offsets[place] and not short:
                short = yield from _read(session, reading, offsets[place], Isolation.READ_COMMITTED)
            positions[place] = max(reading.position, offsets[place])


def _read(session: Session, reading: _Reading, end: int | None, isolation: Isolation) -> Body:
    """Reads what there is from where the reader is; whether it is told to go no further."""
    topic, at = reading.topic, reading.at
    route = yield from session.route(topic, at)
    asked = FetchRange(
        topic=topic.name,
        topic_id=topic.id,
        partition=at,
        start=reading.position,
        end=end,
        isolation=isolation,
        start_lineage=reading.lineage,
        leader_epoch=route.epoch,
    )
    world = session.world
    facts, values = yield from session.call_leader(
        topic,
        at,
        f"read {topic.name}/{at} from {reading.position} ({isolation.value})",
        lambda broker: _fetch(world, broker, asked, reading),
        route,
    )
    if not session.answered(topic, route, facts.leader_epoch):
        return False
    short = end is not None and facts.next == reading.position
    if short:
        course = world.history.courses[topic.id, at]
        world.notice("ended_short", course, reading.position, end)
    reading.position, reading.lineage = facts.next, facts.lineage
    reading.got += values
    return short


def _fetch(world: World, broker: SimulatedBroker, asked: FetchRange, reading: _Reading) -> Body:
    """As DoGet: answer by answer, with anything in between."""
    yield NOW
    place = (reading.topic.id, reading.at)
    stream = RangeStream(broker.host, asked, lambda: False, world.clock)
    partition = broker.host.topic(asked.topic, asked.topic_id).partition(asked.partition)
    began = partition.leader_epoch
    world.look_at(broker)
    line = world.history.lines[broker.broker_id, place]
    position = asked.start
    if asked.isolation is Isolation.READ_UNCOMMITTED and reading.position == position:
        world.notice("went_on", line, tuple(reading.got), position)
    values: list[int] = []
    for step in stream.answers():
        assert not isinstance(step, AwaitRecords)  # the simulator's fetches do not wait
        batch, facts = step
        assert not isinstance(batch, tuple)  # it was not asked for encoded
        if batch.num_rows:
            values += batch.column(0).to_pylist()
            yield NOW
        else:
            told = fetch_answer(facts)
            assert isinstance(told, EndFacts), told
            last = told
    world.look_at(broker)
    if last.bounds is not None:
        world.notice("told", line.course, last.bounds, last.leader_epoch)
    if not line.deleted and partition.leader_epoch == began:
        read = Looked(line, asked.isolation, position, int(last.next), values)
        world.notice("looked", read)
        # A read that meets damage ends there with what is sound before it, and the next one fails.
        if asked.isolation is Isolation.READ_ATOMIC and not line.was_damaged:
            world.notice("cut", {place: int(last.next)})
    return last, values


def _wait(world: World, reading: _Reading, isolation: Isolation, broker: SimulatedBroker) -> Body:
    """Waits for more than there is, for a while."""
    yield NOW
    topic, position = reading.topic, reading.position
    partition = broker.host.topic(topic.name, topic.id).partition(reading.at)
    woken = Signal(world.schedule)
    number = partition.wait_beyond(Offset(position), isolation, woken.give)
    if number is None:
        return
    try:
        yield Within(woken, _WAIT_S)
        if upper_bound(partition.bounds(isolation), isolation) > position and partition.leads:
            yield Within(woken, _WAKING_S)
            world.notice("waited", f"{topic.name}/{reading.at}", woken.given)
    finally:
        partition.stop_waiting(number)
