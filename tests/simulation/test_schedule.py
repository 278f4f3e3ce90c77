"""The schedule of a simulated run: one seed, one run. A crashed owner runs no task."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.clock import VirtualClock
from tests.simulation.schedule import NOW, Body, Schedule, Signal, Within


def schedule(seed: int = 1) -> Schedule:
    return Schedule(Random(seed), VirtualClock())


def run(found: Schedule, events: int = 10_000) -> None:
    for _ in range(events):
        if found.advance() is None:
            return
    raise AssertionError(f"it goes on after {events} events")


def interleaving(seed: int) -> list[str]:
    told: list[str] = []

    def count(name: str) -> Body:
        for number in range(5):
            told.append(f"{name}{number}")
            yield NOW

    found = schedule(seed)
    for name in "abc":
        found.start(name, count(name))
    run(found)
    return told


def test_one_seed_gives_one_order_and_others_give_others():
    assert interleaving(7) == interleaving(7)
    assert len({tuple(interleaving(seed)) for seed in range(50)}) > 40


@pytest.mark.parametrize("seed", range(20))
def test_each_task_keeps_its_own_order(seed):
    told = interleaving(seed)
    for name in "abc":
        assert [each for each in told if each[0] == name] == [f"{name}{n}" for n in range(5)]


def test_time_passes_to_the_earliest_timer_without_a_runnable_task():
    told: list[tuple[str, float]] = []
    found = schedule()

    def sleep(name: str, seconds: float) -> Body:
        yield seconds
        told.append((name, found.clock.monotonic()))

    found.start("late", sleep("late", 30.0))
    found.start("early", sleep("early", 2.0))
    run(found)
    assert told == [("early", 2.0), ("late", 30.0)]


def test_time_may_pass_while_a_task_is_runnable():
    """Such a task is slow: its data may be old when it continues."""
    overtaken = 0
    for seed in range(200):
        found = schedule(seed)
        seen: list[float] = []

        def slow(found: Schedule = found, seen: list[float] = seen) -> Body:
            for _ in range(10):
                yield NOW
            seen.append(found.clock.monotonic())

        def sleep() -> Body:
            yield 5.0

        found.start("slow", slow())
        found.start("sleeper", sleep())
        run(found)
        overtaken += seen == [5.0]
    assert 0 < overtaken < 100


def test_a_signal_wakes_all_waiters_and_later_ones():
    found = schedule()
    signal = Signal(found)
    told: list[str] = []

    def wait(name: str) -> Body:
        yield signal
        told.append(name)

    def give() -> Body:
        yield 1.0
        assert told == []
        signal.give()

    for name in "ab":
        found.start(name, wait(name))
    found.start("giver", give())
    run(found)
    found.start("c", wait("c"))
    run(found)
    assert sorted(told) == ["a", "b", "c"]


def test_tasks_that_wait_forever_end_the_run():
    found = schedule()

    def wait() -> Body:
        yield Signal(found)

    found.start("waits", wait())
    run(found)
    assert found.events == 1


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_drops_the_owners_tasks_and_no_others(seed):
    found = schedule(seed)
    told: list[str] = []
    crashed: list[int] = []

    def work(name: str) -> Body:
        for _ in range(20):
            yield NOW
            assert not (crashed and name == "b"), "it was dropped"
            told.append(name)
            yield 0.1

    def crash() -> Body:
        yield 0.5
        found.drop("b")
        crashed.append(len(told))

    found.start("a", work("a"), owner="a")
    found.start("b", work("b"), owner="b")
    found.start("chaos", crash())
    run(found)
    assert told.count("a") == 20
    assert told.count("b") < 20


def test_a_task_may_crash_its_own_owner():
    found = schedule()
    after: list[str] = []

    def die() -> Body:
        found.drop("me")
        yield NOW
        after.append("still here")

    found.start("dying", die(), owner="me")
    run(found)
    assert after == []


def test_the_wall_clock_steps_and_the_others_do_not():
    clock = VirtualClock()
    clock.move_to(10.0)
    steady, wall = clock.steady_us(), clock.wall_us()
    clock.step_wall(-86_400.0)
    assert (clock.monotonic(), clock.steady_us()) == (10.0, steady)
    assert clock.wall_us() == wall - 86_400_000_000
    clock.move_to(5.0)
    assert clock.monotonic() == 10.0


def test_a_wait_with_a_timeout_ends_at_the_signal_or_the_timeout():
    told: list[tuple[str, bool, float]] = []
    found = schedule()
    early, late = Signal(found), Signal(found)

    def wait(name: str, signal: Signal) -> Body:
        yield Within(signal, 5.0)
        told.append((name, signal.given, found.clock.monotonic()))
        yield 100.0  # the timer that is left of the wait resumes nobody
        told.append((name, signal.given, found.clock.monotonic()))

    def give(signal: Signal, after_s: float) -> Body:
        yield after_s
        signal.give()

    found.start("a", wait("a", early))
    found.start("b", wait("b", late))
    found.start("early", give(early, 1.0))
    found.start("late", give(late, 50.0))
    run(found)
    assert told == [("a", True, 1.0), ("b", False, 5.0), ("a", True, 101.0), ("b", True, 105.0)]


def test_tasks_of_a_paused_owner_continue_later():
    told: list[str] = []
    found = schedule()

    def work(name: str) -> Body:
        for _ in range(3):
            yield 1.0
            told.append(name)

    def stop_and_resume() -> Body:
        yield 1.5
        found.stop("still")
        yield 10.0
        assert told.count("still") == 1
        assert told.count("busy") == 3
        found.resume("still")

    found.start("still", work("still"), "still")
    found.start("busy", work("busy"), "busy")
    found.start("operator", stop_and_resume())
    run(found)
    assert told.count("still") == 3
