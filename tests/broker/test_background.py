"""Background tasks of a broker, observed by the pauses of their threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isolog.errors import MetadataLost
from spark_stream.broker.background import BackgroundTasks, Task


class Stop:
    """Notes the pauses instead of waiting, and stops the broker after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.pauses: list[float] = []
        self._rounds = rounds

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        return len(self.pauses) > self._rounds

    def is_set(self) -> bool:
        return False


def pauses_of(
    task: Task, pause_s: float, run: Callable[[Any], None] = lambda script: None
) -> list[float]:
    stop = Stop(3)
    tasks = BackgroundTasks(run, stop)  # type: ignore[arg-type]
    tasks.start("task", pause_s, task)
    tasks.join()
    return stop.pauses


@pytest.mark.parametrize("error", [MetadataLost("gone"), KeyError("a defect")])
def test_a_failing_task_is_not_retried_immediately(error):
    def fail() -> None:
        raise error

    assert pauses_of(fail, 0.0) == [0.0, 0.1, 0.1, 0.1]
    assert pauses_of(fail, 0.5) == [0.5] * 4


def test_a_task_that_succeeds_after_an_error_has_its_normal_pause():
    outcomes = iter([MetadataLost("gone"), None, None])

    def run() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    assert pauses_of(run, 0.0) == [0.0, 0.1, 0.0, 0.0]


def test_a_script_is_driven_and_a_call_may_return_the_pause():
    scripts: list[list[int]] = []

    def script() -> Iterator[int]:
        yield 7

    assert pauses_of(script, 0.5, lambda each: scripts.append(list(each))) == [0.5] * 4
    assert scripts == [[7]] * 3
    assert pauses_of(lambda: 0.25, 0.5) == [0.5, 0.25, 0.25, 0.25]
