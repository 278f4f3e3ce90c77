"""Who goes on next: tasks are generators, and one source of chance picks among those that can.

A task yields what it waits for, and is resumed when that is there: ``NOW`` (its turn, sooner or
later), a number of seconds, or a ``Signal``. Between two resumptions anything may happen: other
tasks go on, time passes, and whoever owns the task may crash, which drops it where it stands.

The same seed and the same tasks give the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from spark_stream.testing.simulation.clock import VirtualClock


class Signal:
    """Something that tasks wait for; once it is given, who asks later does not wait."""

    __slots__ = ("_schedule", "_waiting", "given")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._waiting: list[Task] = []
        self.given = False

    def give(self) -> None:
        """Lets everybody go on who waits for it."""
        self.given = True
        for task in self._waiting:
            self._schedule.make_ready(task)
        self._waiting = []

    def add(self, task: Task) -> None:
        """The task waits for it."""
        self._waiting.append(task)


class _Now:
    """Waits for nothing but its turn."""

    __slots__ = ()


NOW: Final = _Now()
_SLOW: Final = 0.02  # how often time passes while some task could go on: that task is slow
Wait = _Now | Signal | float
Body = Generator[Wait, None, Any]


@dataclass(eq=False, slots=True)
class Task:
    """One thread of a run. ``owner`` takes it along when it crashes ("": nobody does)."""

    name: str
    body: Body
    owner: str = ""
    dropped: bool = False
    ready: bool = field(default=False, repr=False)


class Schedule:
    """The tasks of one run."""

    def __init__(self, chance: Random, clock: VirtualClock) -> None:
        self.clock = clock
        self.events = 0
        self._chance = chance
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task]] = []
        self._timers_set = 0
        self._tasks: dict[Task, None] = {}
        self._running: Task | None = None

    def start(self, name: str, body: Body, owner: str = "") -> Task:
        """A new task; it takes its first step when its turn comes."""
        task = Task(name, body, owner)
        self._tasks[task] = None
        self.make_ready(task)
        return task

    def drop(self, owner: str) -> None:
        """Drops all tasks of this owner where they stand."""
        for task in [each for each in self._tasks if each.owner == owner]:
            self._forget(task)
            if task is not self._running:  # which crashes its own owner, and ends after this step
                task.body.close()

    def make_ready(self, task: Task) -> None:
        """The task may go on."""
        if not task.ready and not task.dropped:
            task.ready = True
            self._ready.append(task)

    def advance(self) -> Task | None:
        """One event: a task goes on to its next wait. None: no task is left that ever could."""
        slow = bool(self._timers) and self._chance.random() < _SLOW
        if (slow or not self._ready) and not self._let_time_pass() and not self._ready:
            return None
        chosen = int(self._chance.random() * len(self._ready))
        # The last one takes the free place: order means nothing here, for chance picks.
        task, self._ready[chosen] = self._ready[chosen], self._ready[-1]
        self._ready.pop()
        task.ready = False
        self.events += 1
        self._running = task
        try:
            waits_for = next(task.body)
        except StopIteration:
            self._forget(task)
            return task
        except BaseException:
            self._forget(task)
            raise
        finally:
            self._running = None
        if task.dropped:
            task.body.close()
        elif isinstance(waits_for, float):
            self._timers_set += 1
            moment = self.clock.monotonic() + waits_for
            heapq.heappush(self._timers, (moment, self._timers_set, task))
        elif isinstance(waits_for, Signal) and not waits_for.given:
            waits_for.add(task)
        else:
            self.make_ready(task)
        return task

    def _let_time_pass(self) -> bool:
        """Moves the clock to the next timer of a task that is still there."""
        while self._timers:
            moment, _, task = heapq.heappop(self._timers)
            if not task.dropped:
                self.clock.move_to(moment)
                self.make_ready(task)
                return True
        return False

    def _forget(self, task: Task) -> None:
        task.dropped = True
        self._tasks.pop(task, None)
        if task.ready:
            self._ready.remove(task)
            task.ready = False
