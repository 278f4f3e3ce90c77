"""The core of the producer: whatever happens in whatever order, each batch is settled once."""

from __future__ import annotations

import pytest

from spark_stream.consistency.producers import EPOCH_MAX
from tests.client.writing.producer_world import World

SEEDS = 1500


@pytest.mark.parametrize("epoch", [0, EPOCH_MAX])
def test_whatever_happens_each_batch_is_settled_once_and_truly(epoch):
    """Order, window, sequences without gaps, one settlement each, no error that acknowledges."""
    kinds = set()
    for seed in range(SEEDS):
        world = World(seed, epoch)
        often = [world.submit, world.carry_out, world.answer, world.open, world.deliver, world.hear]
        seldom = [world.lose, world.silence, world.move, world.wait]
        seldom += [world.alter, world.restart, world.discard]
        weights = [10] * len(often) + [world.chance.choice([0, 1, 3]) for _ in seldom]
        try:
            for _ in range(world.chance.randrange(150)):
                world.chance.choices([*often, *seldom], weights)[0]()
            world.settle_down()
            world.check()
        except BaseException as error:
            error.add_note(f"World({seed}, {epoch})")
            raise
        kinds |= {type(each.settlements[0][0]).__name__ for each in world.submitted}
    assert kinds == {"Written", "Unacknowledged"}
