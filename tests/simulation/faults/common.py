"""The common part of faults: their broker, their time, and the return of the broker."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.simulation.broker import SimulatedBroker
from tests.simulation.leases import LEASE_S
from tests.simulation.schedule import Body
from tests.simulation.world import World

SOON_S: Final = 8.0
"""Clients work for about so long."""
LEASE_OVER_S: Final = LEASE_S * 1.2
"""A broker that stops for longer has lost its lease."""


def begin(world: World, name: str) -> tuple[Random, SimulatedBroker]:
    """The fault's chance, and the broker that it hits."""
    chance = world.form.chance(name)
    return chance, chance.choice(world.brokers)


def come_back_after(chance: Random) -> float:
    """The seconds for which a broker stops: less than its lease, or longer."""
    return chance.random() * chance.choice((1.0, 3.0, LEASE_OVER_S * 2))


def come_back(world: World, chance: Random, broker: SimulatedBroker) -> Body:
    """The broker starts again, before its lease expires or after."""
    yield come_back_after(chance)
    if not broker.runs and not world.calm:
        world.tell(f"{broker.broker_id} starts again")
        broker.start()
