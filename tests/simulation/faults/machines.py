"""Faults of a broker's process, its disk and its machine."""

from __future__ import annotations

from random import Random
from typing import Final

from isolog.errors import DiskFull, StorageFailure
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import BrokerId
from tests.simulation.broker import SimulatedBroker
from tests.simulation.faults.common import (
    LEASE_OVER_S,
    SOON_S,
    begin,
    come_back,
    come_back_after,
)
from tests.simulation.schedule import NOW, Body, Signal, Within
from tests.simulation.world import World

_WRITTEN_OFF_S: Final = 30  # longer than clients go on


def crash(world: World, name: str) -> Body:
    """A broker ends between two steps, and comes back."""
    chance, broker = begin(world, name)
    for _ in range(chance.randint(1, 2)):
        yield chance.random() * SOON_S
        for _ in range(chance.randrange(12)):  # between any two events, not only when all rest
            yield NOW
        if world.calm or not broker.runs:
            return
        world.tell(f"{broker.broker_id} crashes")
        broker.crash()
        yield from come_back(world, chance, broker)


def cut_power(world: World, name: str) -> Body:
    """A machine loses power, and unsynced data."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S
    for _ in range(chance.randrange(12)):
        yield NOW
    if world.calm:
        return
    world.tell(f"{broker.broker_id} loses power")
    world.lose_power(broker)
    yield from come_back(world, chance, broker)


def end_within_a_step(world: World, name: str) -> Body:
    """A broker ends within a step: after some of its writes, before the next."""
    chance, broker = begin(world, name)
    for _ in range(chance.randint(1, 3)):
        yield chance.random() * SOON_S / 2
        if world.calm or not broker.runs:
            return
        broker.dies_in = chance.randrange(6)
        while broker.runs and not world.calm:
            yield 0.5
        if world.calm:
            return
        if chance.random() < 0.3:
            world.tell(f"{broker.broker_id} loses power too")
            world.lose_power(broker)
        yield from come_back(world, chance, broker)


def pause(world: World, name: str) -> Body:
    """A broker pauses, perhaps for longer than its lease, and continues."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S
    if world.calm or not broker.runs:
        return
    world.tell(f"{broker.broker_id} stands still")
    broker.pause()
    yield chance.random() * chance.choice((2.0, LEASE_OVER_S * 2))
    if not world.calm and broker.runs:
        world.tell(f"{broker.broker_id} goes on")
        broker.go_on()


def fail_a_force(world: World, name: str) -> Body:
    """Fsyncs of the disk fail, now and then. Later the broker restarts."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S
    if world.calm:
        return
    for _ in range(chance.randint(1, 4)):
        world.tell(f"the next force of {broker.broker_id} fails")
        broker.logs.fail_next_force()
        yield chance.random() * 2.0
    if not world.calm and broker.runs:
        if chance.random() < 0.6:
            world.tell(f"{broker.broker_id} loses power")
            world.lose_power(broker)
        else:
            world.tell(f"{broker.broker_id} is ended by its operator")
            broker.crash()
        yield from come_back(world, chance, broker)


def fill_a_disk(world: World, name: str) -> Body:
    """The disk takes no writes for a while: mostly since it is full."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S
    if world.calm:
        return
    why = DiskFull if chance.random() < 0.7 else StorageFailure
    world.tell(f"the disk of {broker.broker_id} refuses writes: {why.code}")
    broker.logs.refuse_writes(why)
    yield chance.random() * 12.0
    broker.logs.refuse_writes(None)


def ruin_a_disk(world: World, name: str) -> Body:
    """A disk takes no writes any more until all trouble ends.

    For runs without other faults, which could keep a leader from handing over. ``form`` draws none
    by chance.
    """
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S / 2
    why = DiskFull if chance.random() < 0.5 else StorageFailure
    world.tell(f"the disk of {broker.broker_id} refuses writes from now on: {why.code}")
    broker.logs.refuse_writes(why)
    for _ in range(_WRITTEN_OFF_S):
        if world.calm:
            return
        world.notice("refuses_writes", broker)
        yield 1.0


def restart(world: World, name: str) -> Body:
    """An operator shuts a broker down cleanly, and starts it again."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S
    if world.calm or not broker.serves or broker.paused:
        return
    world.tell(f"{broker.broker_id} is asked to end")
    ended = Signal(world.schedule)
    life = broker.lives

    def end() -> Body:
        yield from broker.end_in_order()

    def wait() -> Body:
        while broker.runs and broker.lives == life:
            yield 0.5
        ended.give()

    world.schedule.start(f"{broker.broker_id} ends", end(), broker.owner)
    world.schedule.start(f"{name} waits", wait())
    yield Within(ended, 60.0)
    if broker.lives == life and not broker.runs:
        yield from come_back(world, chance, broker)


def wipe(world: World, name: str) -> Body:
    """A broker ends, and comes back without the folder of a topic that others have too."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S
    if world.calm or not broker.runs:
        return
    world.tell(f"{broker.broker_id} crashes")
    broker.crash()
    yield come_back_after(chance)
    if world.calm or broker.runs:
        return
    # Only now: the brokers of other copies may have died since.
    topics = [each for each in world.topics() if _others_have(world, each, broker)]
    if topics:
        gone = chance.choice(topics)
        world.tell(f"{broker.broker_id} loses the folder of {gone.name}")
        world.wipe(broker, gone)
    world.tell(f"{broker.broker_id} starts again")
    broker.start()


def change_a_byte(world: World, name: str) -> Body:
    """A bit of a stored batch changes on a disk. An in-sync replica that runs has it as it was.

    For runs whose logs are files. ``form`` draws none by chance.
    """
    chance, _ = begin(world, name)
    for _ in range(chance.randint(1, 4)):
        yield chance.random() * SOON_S / 2
        if world.calm:
            return
        sound = [each for each in world.topics() if not _is_damaged(world)]
        if not sound:
            return
        topic = chance.choice(sound)
        broker = chance.choice([each for each in world.brokers if each.runs] or world.brokers)
        if broker.runs and _change_a_byte(world, chance, topic, broker, copies=1):
            return


def change_a_byte_on_each(world: World, name: str) -> Body:
    """A bit changes on each broker's disk, each in another entry, and all brokers find that.

    For runs whose logs are files. ``form`` draws none by chance.
    """
    chance, _ = begin(world, name)
    yield chance.random() * SOON_S
    changed = False
    while not changed:
        yield 0.2
        whole = [each for each in world.topics() if _is_in_sync_everywhere(world, each)]
        if world.calm or _is_damaged(world):
            return
        for topic in chance.sample(whole, min(1, len(whole))):
            for broker in chance.sample(world.brokers, len(world.brokers)):
                copies = len(world.brokers) - 1
                changed |= _change_a_byte(world, chance, topic, broker, copies)
    for broker in world.brokers:  # together: the first damage that an open finds ends the log there
        for replica in broker.host.open_replicas():
            for piece in replica.log.check_stored():
                for suspect in piece.suspects:
                    replica.confirm(suspect)


def _change_a_byte(
    world: World, chance: Random, topic: Topic, broker: SimulatedBroker, copies: int
) -> bool:
    """Change a bit of a batch of which there are sound copies elsewhere, at least so many.

    Return whether there was such a batch.
    """
    spared = _with_fewer_copies(world, topic, broker, copies)
    found = broker.logs.change_a_byte(chance, topic.id, spared)
    if found is None:
        return False
    path, entry = found
    world.tell(f"a byte changes in {path}, entry {entry}")
    line = world.history.lines[broker.broker_id, (topic.id, int(path.parent.name))]
    line.may_be_gone = line.was_damaged = True
    line.damaged.add(entry)
    return True


def _is_in_sync_everywhere(world: World, topic: Topic) -> bool:
    """Whether all brokers serve, and have all of the topic in the generations on record."""
    courses = [course for course in world.history.there() if course.place[0] == topic.id]
    return all(each.serves for each in world.brokers) and all(
        course.record is not None and len(course.record.isr) == len(world.brokers)
        for course in courses
    )


def _is_damaged(world: World) -> bool:
    """Whether an open log has detected damage that is not repaired."""
    return any(
        each.log.hole is not None
        for broker in world.brokers
        if broker.serves
        for each in broker.host.open_replicas()
    )


def _others_have(world: World, topic: Topic, broker: SimulatedBroker) -> bool:
    """Whether all that the broker has of a topic is in sync at another one that renews its lease.

    If the lease of the other one expired first, this broker would be the only in-sync replica.
    """
    records = [course.record for course in world.history.there() if course.place[0] == topic.id]
    mine = [each for each in records if each and each.member(BrokerId(broker.broker_id))]
    others = ({member.broker for member in each.isr} - {broker.broker_id} for each in mine)
    return all(any(_keeps_its_lease(world.broker(each)) for each in found) for found in others)


def _keeps_its_lease(broker: SimulatedBroker) -> bool:
    return broker.serves and broker.renews and not (broker.paused or broker.outage.is_away)


def _with_fewer_copies(
    world: World, topic: Topic, broker: SimulatedBroker, copies: int
) -> set[tuple[str, int]]:
    """Return the entries of which fewer in-sync replicas elsewhere have a sound copy, and run.

    Each with its partition's folder. An in-sync replica may lack the last entries, and may be
    damaged too: damage to the last sound copy cannot be repaired.
    """
    found: set[tuple[str, int]] = set()
    for course in world.history.there():
        if course.place[0] != topic.id or course.record is None:
            continue
        others = [
            world.history.line(each.broker, course.place)
            for each in course.record.isr
            if each.broker != broker.broker_id and world.broker(each.broker).runs
        ]
        mine = world.history.line(broker.broker_id, course.place)
        found |= {
            (str(course.place[1]), entry)
            for entry in range(len(mine.entries))
            if sum(each.is_sound(entry) for each in others) < copies
        }
    return found


def black_out(world: World, name: str) -> Body:
    """All machines lose power together."""
    chance, _ = begin(world, name)
    yield chance.random() * SOON_S
    if world.calm:
        return
    world.tell("all machines lose power")
    for broker in world.brokers:
        world.lose_power(broker)
    yield chance.random() * 2.0
    for broker in chance.sample(world.brokers, len(world.brokers)):
        if not broker.runs and not world.calm:
            broker.start()
        yield chance.random() * chance.choice((0.1, 3.0))
