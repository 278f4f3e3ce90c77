"""A named consumer that stores positions by itself, outside any transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from isolog.errors import IsologError
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.scripts.steps import Script
from spark_stream.scripts.transactions import positions
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients.asking import Session
from tests.simulation.clients.transactions import CONSUMERS, take_name
from tests.simulation.network import NoAnswer
from tests.simulation.schedule import Body
from tests.simulation.world import World


def move_on(world: World, name: str) -> Body:
    """Takes names over again and again, and moves on under them."""
    session = Session(world, name)
    for life in range(session.chance.randint(2, 4)):
        consumer, instance = session.chance.choice(CONSUMERS), f"{name}#{life}"
        try:
            yield from _move(session, consumer, instance)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: ends: {error}")
        yield from session.pause(2.0)


def _move(session: Session, consumer: str, instance: str) -> Body:
    at = yield from take_name(session, consumer, instance)
    for _ in range(session.chance.randint(0, 2)):
        yield from session.pause(1.0)
        at += 1
        moved = (PositionOf(consumer, "in", "in", 0, at),)
        session.world.notice("stored", moved)
        store = partial(_store, moved, {consumer: instance})
        yield from session.run("store a position", store)


def _store(
    moved: Sequence[PositionOf], owners: Mapping[str, str], _: SimulatedBroker
) -> Script[None]:
    return positions.store_positions(moved, owners)
