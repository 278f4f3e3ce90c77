"""What happens to leaders: they are left alone with what they append, and others take over."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from spark_stream.cluster.partitions import PartitionId
from spark_stream.errors import IsologError
from spark_stream.testing.simulation.broker import SimulatedBroker
from spark_stream.testing.simulation.clients.asking import Session
from spark_stream.testing.simulation.faults.common import LEASE_OVER_S, SOON_S, come_back
from spark_stream.testing.simulation.history import Course
from spark_stream.testing.simulation.network import NoAnswer
from spark_stream.testing.simulation.schedule import Body
from spark_stream.testing.simulation.world import World


def leave_a_leader_alone(world: World, name: str) -> Body:
    """A leader that its followers cannot reach takes batches, and is replaced; perhaps by turns."""
    session = Session(world, name)
    chance = session.chance
    yield chance.random() * SOON_S / 2
    course: Course | None = None
    for number in range(chance.randint(1, 4)):
        if course is None or chance.random() < 0.3:
            course = _pick_replicated(world, chance)
        if world.calm or course is None or course.deleted:
            return
        writer = Session(world, f"{name} writes {number}")
        yield from _replace_leader(session, course, writer)


def _pick_replicated(world: World, chance: Random) -> Course | None:
    found = [
        each for each in world.history.there() if each.record and len(each.record.replicas) > 1
    ]
    return chance.choice(found) if found else None


def _replace_leader(session: Session, course: Course, writer: Session) -> Body:
    world, chance, record = session.world, session.chance, course.record
    if record is None or record.leader is None:
        yield 1.0
        return
    leader = world.broker(record.leader)
    others = [each for each in record.replicas if each != record.leader]
    away = chance.sample(others, chance.randint(0, len(others)))
    world.tell(f"{leader.broker_id} is cut off from {', '.join(away) or 'nobody'}")
    pairs = [world.network.split(leader.broker_id, each) for each in away]
    world.start_client(writer.name, _append_some(writer, course))
    yield chance.random() * 0.5
    way = chance.choice(_WAYS)
    yield from way(world, chance, leader, course)
    if chance.random() < 0.5:
        yield chance.random() * 2.0
    for pair in pairs:
        world.network.heal(pair)
    yield from come_back(world, chance, leader)
    yield chance.random() * chance.choice((0.2, 2.0))


def _append_some(session: Session, course: Course) -> Body:
    """Batches that nobody but the leader may ever have."""
    topic = next((each for each in session.world.topics() if each.id == course.place[0]), None)
    for _ in range(session.chance.randint(1, 6)):
        yield session.chance.random() * session.chance.choice((0.0, 0.2, 2.0))
        if topic is not None:
            try:
                yield from session.send(topic, course.place[1], None)
            except (IsologError, NoAnswer) as error:
                session.world.tell(f"{session.name}: {error}")


def _crash(world: World, chance: Random, leader: SimulatedBroker, course: Course) -> Body:
    if not world.calm and leader.runs:
        world.tell(f"{leader.broker_id} crashes")
        leader.crash()
    yield chance.random() * LEASE_OVER_S


def _cut_power(world: World, chance: Random, leader: SimulatedBroker, course: Course) -> Body:
    if not world.calm and leader.runs:
        world.tell(f"{leader.broker_id} loses power")
        world.lose_power(leader)
    yield chance.random() * LEASE_OVER_S


def _pause(world: World, chance: Random, leader: SimulatedBroker, course: Course) -> Body:
    """Its lease ends while it stands still."""
    if not world.calm and leader.runs:
        world.tell(f"{leader.broker_id} stands still")
        leader.pause()
        yield LEASE_OVER_S * (0.8 + chance.random())
        world.tell(f"{leader.broker_id} goes on")
        leader.go_on()


def _lose_lease(world: World, chance: Random, leader: SimulatedBroker, course: Course) -> Body:
    """It cannot renew its lease for a while, and lives on."""
    world.tell(f"{leader.broker_id} cannot renew its lease")
    leader.renews = False
    yield LEASE_OVER_S * (0.8 + chance.random())
    leader.renews = True


def _prefer_another(world: World, chance: Random, leader: SimulatedBroker, course: Course) -> Body:
    """An operator wants another leader, and who led so far may hear of it late."""
    record, place = course.record, PartitionId(*course.place)
    served = [each for each in world.brokers if each.serves and not each.paused]
    if record is None or not served:
        return
    asked = chance.choice(served)
    wanted = chance.sample(record.replicas, len(record.replicas))
    what = f"{wanted[0]} is to lead {course.name}"
    world.tell(what)
    try:
        yield from world.network.call(what, asked, partial(asked.move, place, wanted))
        yield from world.network.call(what, asked, partial(asked.prefer, [place]))
    except (IsologError, NoAnswer) as error:
        world.tell(f"{course.name}: {error}")


_WAYS: Final = (_crash, _cut_power, _pause, _lose_lease, _prefer_another, _prefer_another)
"""How a leader is replaced."""
