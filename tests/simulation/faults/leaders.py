"""Faults of leaders: their followers cannot reach them, and others take over."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from isolog.errors import IsologError
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Isolation
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients.asking import Session
from tests.simulation.clients.readers import find_offsets, follow, read_up_to
from tests.simulation.faults.common import LEASE_OVER_S, SOON_S, come_back
from tests.simulation.history import Course
from tests.simulation.network import NoAnswer
from tests.simulation.schedule import NOW, Body
from tests.simulation.world import World


def leave_a_leader_alone(world: World, name: str) -> Body:
    """A leader that its followers cannot reach takes batches, and is replaced. Perhaps by turns.

    Clients choose its partition most of the time, and a reader reads all records.
    """
    session = Session(world, name)
    chance = session.chance
    yield NOW
    course = _pick_replicated(world, chance)
    if course is None:
        return
    world.favourite = course.place
    yield chance.random() * SOON_S / 2
    for number in range(chance.randint(1, 5)):
        topic = next((each for each in world.topics() if each.id == course.place[0]), None)
        if world.calm or topic is None:
            break
        _begin_clients(world, f"{name}.{number}", topic, course.place[1])
        yield from _replace_leader(session, course)
    world.favourite = None


def _pick_replicated(world: World, chance: Random) -> Course | None:
    found = [
        each for each in world.history.there() if each.record and len(each.record.replicas) > 1
    ]
    return chance.choice(found) if found else None


def _begin_clients(world: World, name: str, topic: Topic, at: int) -> None:
    """One appends what nobody but the leader may ever have, one reads that, one reads cuts."""
    writer, reader = Session(world, f"{name} writes"), Session(world, f"{name} reads")
    cutter = Session(world, f"{name} reads cuts")
    world.start_client(writer.name, _append_some(writer, topic, at))
    if reader.chance.random() < 0.6:
        follow_all = follow(reader, topic, at, Isolation.READ_UNCOMMITTED, 4)
        world.start_client(reader.name, follow_all)
    if cutter.chance.random() < 0.6:
        world.start_client(cutter.name, _read_cuts(cutter, topic))


def _read_cuts(session: Session, topic: Topic) -> Body:
    """Reads up to a cut again and again: so also at a later leader than that which gave it."""
    offsets = None
    for _ in range(session.chance.randint(4, 24)):
        yield session.chance.random() * session.chance.choice((0.0, 0.1, 0.5))
        try:
            if offsets is None or session.chance.random() < 0.1:
                offsets = yield from find_offsets(session, [topic], {})
            if offsets is not None:
                yield from read_up_to(session, [topic], offsets, {})
        except (IsologError, NoAnswer) as error:
            session.world.tell(f"{session.name}: {error}")


def _append_some(session: Session, topic: Topic, at: int) -> Body:
    for _ in range(session.chance.randint(1, 6)):
        yield session.chance.random() * session.chance.choice((0.0, 0.2, 2.0))
        try:
            yield from session.send(None, topic, at)
        except (IsologError, NoAnswer) as error:
            session.world.tell(f"{session.name}: {error}")


def _replace_leader(session: Session, course: Course) -> Body:
    """Cuts the leader off from its successor, or from all others, and elects that one."""
    world, chance, record = session.world, session.chance, course.record
    if record is None or record.leader is None or len(record.replicas) < 2:
        yield 1.0
        return
    leader = world.broker(record.leader)
    others = [each for each in record.replicas if each != record.leader]
    heir = chance.choice(others)
    away = [each for each in others if each == heir or chance.random() < 0.4]
    if chance.random() < 0.2:
        away = []
    world.tell(f"{leader.broker_id} is cut off from {', '.join(away) or 'nobody'}")
    pairs = [world.network.split(leader.broker_id, each) for each in away]
    slow = {each for each in others if chance.random() < 0.3}
    world.network.slow |= slow
    yield chance.random() * 0.5
    way = chance.choice(_WAYS)
    yield from way(world, chance, leader, course, heir)
    if chance.random() < 0.5:
        yield chance.random() * 2.0
    for pair in pairs:
        world.network.heal(pair)
    world.network.slow -= slow
    yield from come_back(world, chance, leader)
    yield chance.random() * chance.choice((0.2, 2.0))


def _crash(
    world: World, chance: Random, leader: SimulatedBroker, course: Course, heir: str
) -> Body:
    if not world.calm and leader.runs:
        world.tell(f"{leader.broker_id} crashes")
        leader.crash()
    yield chance.random() * LEASE_OVER_S


def _cut_power(
    world: World, chance: Random, leader: SimulatedBroker, course: Course, heir: str
) -> Body:
    if not world.calm and leader.runs:
        world.tell(f"{leader.broker_id} loses power")
        world.lose_power(leader)
    yield chance.random() * LEASE_OVER_S


def _pause(
    world: World, chance: Random, leader: SimulatedBroker, course: Course, heir: str
) -> Body:
    """Its lease ends while it stands still."""
    if not world.calm and leader.runs:
        world.tell(f"{leader.broker_id} stands still")
        leader.pause()
        yield LEASE_OVER_S * (0.8 + chance.random())
        world.tell(f"{leader.broker_id} goes on")
        leader.go_on()


def _lose_lease(
    world: World, chance: Random, leader: SimulatedBroker, course: Course, heir: str
) -> Body:
    """It cannot renew its lease for a while, and keeps running."""
    world.tell(f"{leader.broker_id} cannot renew its lease")
    leader.renews = False
    yield LEASE_OVER_S * (0.8 + chance.random())
    leader.renews = True


def _prefer_another(
    world: World, chance: Random, leader: SimulatedBroker, course: Course, heir: str
) -> Body:
    """An operator elects another leader, and the earlier one may read that late."""
    record, place = course.record, PartitionId(*course.place)
    served = [each for each in world.brokers if each.serves and not each.paused]
    if record is None or not served:
        return
    asked = chance.choice(served)
    wanted = [heir, *(each for each in record.replicas if each != heir)]
    what = f"{heir} is to lead {course.name}"
    world.tell(what)
    try:
        yield from world.network.call(what, asked, partial(asked.move, place, wanted))
        yield from world.network.call(what, asked, partial(asked.prefer, [place]))
    except (IsologError, NoAnswer) as error:
        world.tell(f"{course.name}: {error}")


_WAYS: Final = (_crash, _cut_power, _pause, _lose_lease, _prefer_another, _prefer_another)
"""A way to replace a leader."""
