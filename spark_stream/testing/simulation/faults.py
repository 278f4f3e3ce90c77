"""What goes wrong in a run. Each fault is a body, which ends when all trouble does, or before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import BrokerId
from spark_stream.testing.simulation.broker import SimulatedBroker
from spark_stream.testing.simulation.leases import LEASE_S
from spark_stream.testing.simulation.network import CLIENTS
from spark_stream.testing.simulation.schedule import NOW, Body, Signal, Within
from spark_stream.testing.simulation.store import MemoryStore
from spark_stream.testing.simulation.world import World

_SOON_S: Final = 8.0  # clients work for about so long
_LEASE_S: Final = LEASE_S * 1.2  # a broker that is away for longer has lost its lease


def _begin(world: World, name: str) -> tuple[Random, SimulatedBroker]:
    chance = world.form.chance(name)
    return chance, chance.choice(world.brokers)


def _come_back(world: World, chance: Random, broker: SimulatedBroker) -> Body:
    """The broker starts again, before its lease is over or after."""
    yield chance.random() * chance.choice((1.0, 3.0, _LEASE_S * 2))
    if not broker.runs and not world.calm:
        world.tell(f"{broker.broker_id} starts again")
        broker.start()


def crash(world: World, name: str) -> Body:
    """A broker ends between two steps, and comes back."""
    chance, broker = _begin(world, name)
    for _ in range(chance.randint(1, 2)):
        yield chance.random() * _SOON_S
        for _ in range(chance.randrange(12)):  # between any two events, not only when all rest
            yield NOW
        if world.calm or not broker.runs:
            return
        world.tell(f"{broker.broker_id} crashes")
        broker.crash()
        yield from _come_back(world, chance, broker)


def cut_power(world: World, name: str) -> Body:
    """A machine loses power, and with it what was not forced."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S
    for _ in range(chance.randrange(12)):
        yield NOW
    if world.calm:
        return
    world.tell(f"{broker.broker_id} loses power")
    world.lose_power(broker)
    yield from _come_back(world, chance, broker)


def end_within_a_step(world: World, name: str) -> Body:
    """A broker ends within a step: after some of its writes, before the next."""
    chance, broker = _begin(world, name)
    for _ in range(chance.randint(1, 3)):
        yield chance.random() * _SOON_S / 2
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
        yield from _come_back(world, chance, broker)


def pause(world: World, name: str) -> Body:
    """A broker stands still, perhaps for longer than its lease, and goes on as if nothing was."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S
    if world.calm or not broker.runs:
        return
    world.tell(f"{broker.broker_id} stands still")
    broker.pause()
    yield chance.random() * chance.choice((2.0, _LEASE_S * 2))
    if not world.calm and broker.runs:
        world.tell(f"{broker.broker_id} goes on")
        broker.go_on()


def fail_a_force(world: World, name: str) -> Body:
    """The disk cannot force what was written, now and then; later the broker is started anew."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S
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
        yield from _come_back(world, chance, broker)


def fill_a_disk(world: World, name: str) -> Body:
    """The disk is full for a while."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S
    if world.calm:
        return
    world.tell(f"the disk of {broker.broker_id} is full")
    broker.logs.set_full(True)
    yield chance.random() * 6.0
    broker.logs.set_full(False)


def restart(world: World, name: str) -> Body:
    """An operator ends a broker in order, and starts it again."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S
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
        yield from _come_back(world, chance, broker)


def wipe(world: World, name: str) -> Body:
    """A broker ends, and comes back without the folder of a topic that others have too."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S
    if world.calm or not broker.runs:
        return
    world.tell(f"{broker.broker_id} crashes")
    broker.crash()
    topics = [each for each in world.topics() if _others_have(world, each, broker)]
    if topics:
        gone = chance.choice(topics)
        world.tell(f"{broker.broker_id} loses the folder of {gone.name}")
        world.wipe(broker, gone)
    yield from _come_back(world, chance, broker)


def _others_have(world: World, topic: Topic, broker: SimulatedBroker) -> bool:
    """Whether all that the broker has of a topic is in sync elsewhere."""
    records = [course.record for course in world.history.there() if course.place[0] == topic.id]
    return not any(
        record and record.member(BrokerId(broker.broker_id)) and len(record.isr) < 2
        for record in records
    )


def black_out(world: World, name: str) -> Body:
    """All machines lose power at once."""
    chance, _ = _begin(world, name)
    yield chance.random() * _SOON_S
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


def split(world: World, name: str) -> Body:
    """Two brokers cannot reach each other, or clients cannot reach a broker, for a while."""
    chance, broker = _begin(world, name)
    for _ in range(chance.randint(1, 2)):
        yield chance.random() * _SOON_S
        if world.calm:
            return
        others = [each.broker_id for each in world.brokers if each is not broker]
        other = chance.choice([*others, *others, CLIENTS])
        world.tell(f"{broker.broker_id} and {other} cannot reach each other")
        pair = world.network.split(broker.broker_id, other)
        yield chance.random() * chance.choice((1.0, _SOON_S))
        world.network.heal(pair)


def slow_down(world: World, name: str) -> Body:
    """What a broker gets from leaders comes slowly, for a while."""
    chance, broker = _begin(world, name)
    yield chance.random() * _SOON_S / 2
    if world.calm:
        return
    world.tell(f"{broker.broker_id} follows slowly")
    world.network.slow.add(broker.broker_id)
    yield 1.0 + chance.random() * _SOON_S
    world.network.slow.discard(broker.broker_id)


def trouble_the_network(world: World, name: str) -> Body:
    """Messages are lost, late, doubled, or their answers are lost, for a while."""
    chance, _ = _begin(world, name)
    yield chance.random() * _SOON_S / 2
    if world.calm:
        return
    trouble = world.network.trouble
    kinds = chance.sample(("lost", "late", "answer_lost", "repeated"), chance.randint(1, 3))
    world.tell(f"the network is bad: {', '.join(kinds)}")
    for kind in kinds:
        setattr(trouble, kind, 0.25)
    yield 2.0 + chance.random() * _SOON_S
    for kind in kinds:
        setattr(trouble, kind, 0.0)


def win_races(world: World, name: str) -> Body:
    """Somebody writes records once more as they are: whoever compares and sets meanwhile loses."""
    chance, _ = _begin(world, name)
    store = MemoryStore(world.records)
    for _ in range(chance.randint(5, 25)):
        yield chance.choice((NOW, NOW, chance.random()))
        found = [each for each in world.records.kept if not each.startswith("numbers/")]
        if world.calm or not found:
            return
        record = store.get(chance.choice(sorted(found)))
        if record is not None:
            store.put(record.key, record.value, record.version)


def step_the_clock(world: World, name: str) -> Body:
    """Somebody sets the wall clock, by up to ten years either way."""
    chance, _ = _begin(world, name)
    yield chance.random() * _SOON_S
    world.clock.step_wall((chance.random() - 0.5) * 20 * 365 * 86_400)


FAULTS: Final[Mapping[str, Callable[[World, str], Body]]] = {
    "crash": crash,
    "power-cut": cut_power,
    "sudden-end": end_within_a_step,
    "pause": pause,
    "failed-force": fail_a_force,
    "full-disk": fill_a_disk,
    "bad-network": trouble_the_network,
    "split": split,
    "slow-follower": slow_down,
    "restart": restart,
    "wipe": wipe,
    "blackout": black_out,
    "lost-race": win_races,
    "clock-step": step_the_clock,
}
"""By the kinds of ``form.FAULTS``."""
