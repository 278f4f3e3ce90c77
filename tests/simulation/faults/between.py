"""Faults between brokers: in the network, in the store, and of the wall clock."""

from __future__ import annotations

from functools import partial

from spark_stream.cluster.transactions import NUMBERS
from tests.simulation.faults.common import LEASE_OVER_S, SOON_S, begin
from tests.simulation.network import CLIENTS
from tests.simulation.schedule import NOW, Body
from tests.simulation.store import MemoryStore
from tests.simulation.world import World


def split(world: World, name: str) -> Body:
    """Two brokers cannot reach each other, or clients cannot reach a broker, for a while."""
    chance, broker = begin(world, name)
    for _ in range(chance.randint(1, 2)):
        yield chance.random() * SOON_S
        if world.calm:
            return
        others = [each.broker_id for each in world.brokers if each is not broker]
        other = chance.choice([*others, *others, CLIENTS])
        world.tell(f"{broker.broker_id} and {other} cannot reach each other")
        pair = world.network.split(broker.broker_id, other)
        yield chance.random() * chance.choice((1.0, SOON_S))
        world.network.heal(pair)


def slow_down(world: World, name: str) -> Body:
    """Slow down a broker's connections to leaders for a while."""
    chance, broker = begin(world, name)
    yield chance.random() * SOON_S / 2
    if world.calm:
        return
    world.tell(f"{broker.broker_id} follows slowly")
    world.network.slow.add(broker.broker_id)
    yield 1.0 + chance.random() * SOON_S
    world.network.slow.discard(broker.broker_id)


def trouble_the_network(world: World, name: str) -> Body:
    """Messages are lost, late, doubled, or their answers are lost, for a while."""
    chance, _ = begin(world, name)
    yield chance.random() * SOON_S / 2
    if world.calm:
        return
    trouble = world.network.trouble
    kinds = chance.sample(("lost", "late", "answer_lost", "repeated"), chance.randint(1, 3))
    world.tell(f"the network is bad: {', '.join(kinds)}")
    for kind in kinds:
        setattr(trouble, kind, 0.25)
    yield 2.0 + chance.random() * SOON_S
    for kind in kinds:
        setattr(trouble, kind, 0.0)


def cut_off_the_store(world: World, name: str) -> Body:
    """Some brokers cannot reach the store for a while, perhaps all. One after the other can.

    Some then restart, while their promises still hold.
    """
    chance, _ = begin(world, name)
    yield chance.random() * SOON_S / 2
    if world.calm:
        return
    several = chance.randint(min(2, len(world.brokers)), len(world.brokers))
    away = chance.sample(world.brokers, several)
    for broker in away:
        world.tell(f"{broker.broker_id} cannot reach the store")
        broker.outage.begin()
        yield chance.choice((NOW, chance.random()))
    yield chance.random() * chance.choice((1.0, 2 * LEASE_OVER_S))
    for broker in chance.sample(away, len(away)):
        if world.calm:
            return
        world.tell(f"{broker.broker_id} can reach the store again")
        broker.outage.end(partial(world.look_at, broker))
        if broker.runs and chance.random() < 0.3:
            world.tell(f"{broker.broker_id} crashes")
            broker.crash()
            yield chance.random() * 0.5
            if not world.calm and not broker.runs:
                broker.start()
        yield chance.random() * chance.choice((0.1, LEASE_OVER_S))


def win_races(world: World, name: str) -> Body:
    """Another process writes records again unchanged, so that concurrent compare-and-sets fail."""
    chance, _ = begin(world, name)
    store = MemoryStore(world.records)
    for _ in range(chance.randint(5, 25)):
        yield chance.choice((NOW, NOW, chance.random()))
        found = [each for each in world.records.kept if not each.startswith(NUMBERS)]
        if world.calm or not found:
            return
        record = store.get(chance.choice(sorted(found)))
        if record is not None:
            store.put(record.key, record.value, record.version)


def step_the_clock(world: World, name: str) -> Body:
    """Somebody sets the wall clock, by up to ten years either way."""
    chance, _ = begin(world, name)
    yield chance.random() * SOON_S
    world.clock.step_wall((chance.random() - 0.5) * 20 * 365 * 86_400)
