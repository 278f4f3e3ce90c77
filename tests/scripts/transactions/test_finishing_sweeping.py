"""A broker's own work: expiry by its monotonic clock, removal of old ids, lost markers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from isolog.errors import LeaderUnavailable
from spark_stream.consistency.transactions.transactions import Cause, State
from spark_stream.scripts.steps import Seal, Step
from spark_stream.scripts.transactions import finishing
from spark_stream.scripts.transactions.finishing import FORGET_AFTER_MS, SEEN_IDLE_S, Swept
from spark_stream.scripts.transactions.records import read_all
from tests.scripts.transactions.test_deciding_interleavings import (
    A,
    B,
    begin,
    commit,
    renewed,
    watched,
    write,
)
from tests.scripts.world import World

TIMEOUT_S = 60.0
YEAR_MS = 365 * 86_400_000


class FakeClock:
    """Monotonic seconds, and a wall clock that may be set."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.wall_ms = 50 * YEAR_MS

    def monotonic(self) -> float:
        return self.seconds

    def steady_us(self) -> int:
        return self.wall_ms * 1_000

    def wall_us(self) -> int:
        return self.wall_ms * 1_000


def sweep(world: World, clock: FakeClock, broker: str = A) -> list[Swept]:
    found = world.brokers[broker]
    return [
        world.run(
            broker,
            found.sweeper.sweep_record(record, clock.monotonic(), clock.wall_ms),
        )
        for record in world.run(broker, read_all())
    ]


@pytest.mark.rule(
    "the expiry of a transaction",
    "consistency/transactions/events.py",
    "scripts/transactions/finishing.py",
)
@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
def test_setting_the_wall_clock_expires_no_transaction(jump_ms):
    world, clock = watched(), FakeClock()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    assert sweep(world, clock) == [Swept.LEFT]
    clock.wall_ms += jump_ms
    clock.seconds += TIMEOUT_S / 2
    assert sweep(world, clock) == [Swept.LEFT]
    assert world.store.transaction("x").state is State.OPEN
    clock.wall_ms -= jump_ms
    clock.seconds += TIMEOUT_S / 2 + 0.001
    assert sweep(world, clock) == [Swept.EXPIRED]
    found = world.store.transaction("x")
    assert (found.state, found.cause) == (State.ABORTED, Cause.EXPIRED)
    assert world.partitions[world.at(0)].visible() == []


def test_a_renewal_restarts_the_timeout_with_a_stopped_wall_clock():
    world, clock = watched(), FakeClock()
    begun = begin(world, A, "x")
    for _ in range(5):
        assert sweep(world, clock) == [Swept.LEFT]
        clock.seconds += TIMEOUT_S * 0.9
        world.run(A, world.brokers[A].decisions.renew(renewed("x", begun)))
    assert sweep(world, clock) == [Swept.LEFT]
    clock.seconds += TIMEOUT_S + 0.001
    assert sweep(world, clock) == [Swept.EXPIRED]


def test_a_restart_restarts_the_timeout():
    world, clock = watched(), FakeClock()
    begin(world, A, "x")
    sweep(world, clock)
    clock.seconds += TIMEOUT_S * 2
    world.crash(A)
    clock.seconds = 3.0  # another process, perhaps another boot
    assert sweep(world, clock) == [Swept.LEFT]
    clock.seconds += TIMEOUT_S + 0.001
    assert sweep(world, clock) == [Swept.EXPIRED]


def test_a_renewal_before_the_decision_prevents_the_expiry():
    world, clock = watched(), FakeClock()
    begun = begin(world, A, "x")
    sweep(world, clock)
    clock.seconds += TIMEOUT_S + 1
    found = world.brokers[A]
    record = world.store.transaction("x")
    late = world.start(A, found.sweeper.sweep_record(record, 2_000.0, 0))
    world.brokers[B].now_ms = 5
    world.run(B, world.brokers[B].decisions.renew(renewed("x", begun)))
    while not late.over:
        world.advance(late)
    assert (late.result, world.store.transaction("x").state) == (Swept.LEFT, State.OPEN)


def test_an_id_is_removed_only_after_it_was_seen_idle():
    world, clock = watched(), FakeClock()
    begun = begin(world, A, "x")
    done = commit(world, A, "x", begun)
    while not done.over:
        world.advance(done)
    assert sweep(world, clock) == [Swept.FINISHED]
    clock.wall_ms = FORGET_AFTER_MS + YEAR_MS  # a host that starts with a wrong clock
    assert sweep(world, clock) == [Swept.LEFT]
    clock.seconds += SEEN_IDLE_S - 1
    assert sweep(world, clock) == [Swept.LEFT]
    clock.seconds += 2
    assert sweep(world, clock) == [Swept.FORGOTTEN]
    assert world.run(A, read_all()) == []


# -- leaders that do not answer ------------------------------------------------------------------


def test_no_partition_is_marked_while_a_leader_cannot_be_reached():
    """Otherwise a batch on its way to it would be missing in a range that a reader has read."""
    world = watched()
    begun = begin(world, A, "x")
    for number in range(2):
        world.run(A, write("x", begun, world.at(number), number))
    gone = world.at(1)

    def unreachable(step: Step) -> None:
        if isinstance(step, Seal) and step.at == gone:
            raise LeaderUnavailable("it is gone")

    real = world.carry_out
    world.carry_out = lambda broker, step: (unreachable(step), real(broker, step))[1]  # type: ignore[method-assign]
    asked = commit(world, A, "x", begun)
    while not asked.over:
        world.advance(asked)
    assert isinstance(asked.error, LeaderUnavailable)
    assert world.store.transaction("x").state is State.COMMITTING
    assert not world.partitions[world.at(0)].ends
    world.carry_out = real  # type: ignore[method-assign]
    assert sweep(world, FakeClock()) == [Swept.FINISHED]
    assert [world.partitions[world.at(n)].visible() for n in range(2)] == [[0], [1]]


# -- damage ---------------------------------------------------------------------------------------


def test_a_lost_marker_is_restored_from_the_record():
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun)
    while not asked.over:
        world.advance(asked)
    sweep(world, FakeClock())
    partition = world.partitions[world.at(0)]
    world.before_step.clear()  # the damage breaks an invariant
    partition.ends.clear()
    partition.batches.append((999, 7, 5))  # of a transaction whose record has moved on
    lost = world.run(A, finishing.restore_markers([(world.at(0), begun[0]), (world.at(0), 999)]))
    assert [(each.number, each.fate) for each in lost] == [
        (begun[0], "committed"),
        (999, "unknown: it is taken as aborted"),
    ]
    assert partition.visible() == [1]


def test_open_and_decided_transactions_are_left_alone_at_a_start():
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    parts = [(world.at(0), begun[0])]
    assert world.run(A, finishing.restore_markers(parts)) == []
    asked = commit(world, A, "x", begun)
    while world.store.transaction("x").state is State.OPEN:
        world.advance(asked)
    assert world.run(B, finishing.restore_markers(parts)) == []
    assert world.partitions[world.at(0)].ends == {}


def test_a_transaction_finished_in_memory_is_recorded_without_new_steps():
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun)
    while not asked.over:
        world.advance(asked)
    assert world.store.transaction("x").state is State.COMMITTING
    seen: list[Step] = []
    world.before_step.append(seen.append)
    assert sweep(world, FakeClock()) == [Swept.FINISHED]
    assert not [step for step in seen if isinstance(step, Seal)]
    assert world.store.transaction("x").state is State.COMMITTED


def test_a_lost_memory_only_repeats_the_finish():
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun)
    while not asked.over:
        world.advance(asked)
    world.crash(A)
    found = world.store.transaction("x")
    assert world.brokers[A].finisher.settled(found) == found
    done = world.run(B, world.brokers[B].finisher.finish(found))
    assert replace(done, state=State.COMMITTING) == found
    assert world.partitions[world.at(0)].visible() == [1]


def test_the_memory_of_a_transaction_does_not_apply_to_the_next():
    """Broker A remembers the first. B decides the second and dies before it has marked it."""
    world = watched()
    first = begin(world, A, "x")
    done = commit(world, A, "x", first)
    while not done.over:
        world.advance(done)
    second = begin(world, A, "x", first[0])
    world.run(A, write("x", second, world.at(0), 1))
    asked = commit(world, B, "x", second)
    while world.store.transaction("x").state is State.OPEN:
        world.advance(asked)
    world.crash(B)
    assert sweep(world, FakeClock()) == [Swept.FINISHED]
    assert world.partitions[world.at(0)].visible() == [1]
