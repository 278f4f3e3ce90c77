"""The schedule: tasks are generators, and one source of chance picks among the runnable ones.

A task yields a condition, and is resumed when it holds: ``NOW`` (its turn, sooner or later), a
number of seconds, a ``Signal``, or a signal with a timeout (``Within``). Any events may happen
between two resumptions: other tasks run, time passes, and the owner of the task may crash, which
drops the task, or pause for a while.

The same seed and the same tasks give the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from msgspec import Struct

from tests.simulation.clock import VirtualClock


class Signal:
    """A condition of tasks. Once it is given, later tasks do not wait."""

    __slots__ = ("_schedule", "_waiting", "given")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._waiting: list[tuple[Task, int]] = []
        self.given = False

    def give(self) -> None:
        """Resumes all tasks that wait for it."""
        self.given = True
        for task, turn in self._waiting:
            if task.turn == turn:  # else it has given up
                self._schedule.make_ready(task)
        self._waiting = []

    def add(self, task: Task) -> None:
        """The task waits for it."""
        self._waiting.append((task, task.turn))


class Within(Struct, frozen=True):
    """Waits for a signal with a timeout. ``given``: whether the signal was given."""

    signal: Signal
    seconds: float


class _Now:
    """Waits for nothing but its turn."""

    __slots__ = ()


NOW: Final = _Now()
_SLOW: Final = 0.02  # how often time passes while some task could go on: that task is slow
Wait = _Now | Signal | Within | float
Body = Generator[Wait, None, Any]


@dataclass(eq=False, slots=True)
class Task:
    """One thread of a run. ``owner`` takes it along when it crashes ("": nobody does).

    ``turn`` counts how often it was resumed.
    """

    name: str
    body: Body
    owner: str = ""
    turn: int = 0
    dropped: bool = False
    ready: bool = field(default=False, repr=False)


class Schedule:
    """The tasks of one run."""

    def __init__(self, chance: Random, clock: VirtualClock) -> None:
        self.clock = clock
        self.events = 0
        self._chance = chance
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task, int]] = []
        self._timers_set = 0
        self._tasks: dict[Task, None] = {}
        self._running: Task | None = None
        self._stopped: dict[str, list[Task]] = {}  # owner → its tasks that could go on

    def start(self, name: str, body: Body, owner: str = "") -> Task:
        """A new task. It takes its first step when its turn comes."""
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
            self._stopped.get(task.owner, self._ready).append(task)

    def stop(self, owner: str) -> None:
        """No task of this owner goes on until :meth:`resume`."""
        held = self._stopped.setdefault(owner, [])
        held += [each for each in self._ready if each.owner == owner]
        self._ready = [each for each in self._ready if each.owner != owner]

    def resume(self, owner: str) -> None:
        """The owner's tasks go on."""
        self._ready += self._stopped.pop(owner, [])

    def advance(self) -> Task | None:
        """One event: a task goes on to its next wait. None: no task is left that ever could."""
        if self._timers and self._chance.random() < _SLOW:
            self._let_time_pass()
        while not self._ready:
            if not self._let_time_pass():
                return None
        chosen = int(self._chance.random() * len(self._ready))
        # The last one takes the free place: order means nothing here, for chance picks.
        task, self._ready[chosen] = self._ready[chosen], self._ready[-1]
        self._ready.pop()
        task.ready = False
        task.turn += 1
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
            self._set_timer(task, waits_for)
        elif isinstance(waits_for, Signal) and not waits_for.given:
            waits_for.add(task)
        elif isinstance(waits_for, Within) and not waits_for.signal.given:
            waits_for.signal.add(task)
            self._set_timer(task, waits_for.seconds)
        else:
            self.make_ready(task)
        return task

    def _set_timer(self, task: Task, seconds: float) -> None:
        self._timers_set += 1
        moment = self.clock.monotonic() + seconds
        heapq.heappush(self._timers, (moment, self._timers_set, task, task.turn))

    def _let_time_pass(self) -> bool:
        """Moves the clock to the next timer of a task that is still there."""
        while self._timers:
            moment, _, task, turn = heapq.heappop(self._timers)
            if not task.dropped and task.turn == turn and not task.ready:
                self.clock.move_to(moment)
                self.make_ready(task)
                return True
        return False

    def _forget(self, task: Task) -> None:
        task.dropped = True
        self._tasks.pop(task, None)
        if task.ready:
            self._stopped.get(task.owner, self._ready).remove(task)
            task.ready = False
