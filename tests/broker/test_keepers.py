"""Threads of a broker that run a task again and again, counted by the pauses that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from spark_stream.broker.process import Broker
from spark_stream.errors import MetadataLost


class Stop:
    """Notes the pauses instead of waiting; says that the broker stops after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.pauses: list[float] = []
        self._rounds = rounds

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        return len(self.pauses) > self._rounds

    def is_set(self) -> bool:
        return False


def pauses_of(task: Callable[[], float | None], pause_s: float) -> list[float]:
    stop = Stop(3)
    Broker._keeper(SimpleNamespace(_stop_asked=stop), "task", pause_s, task).join()
    return stop.pauses


@pytest.mark.parametrize("error", [MetadataLost("gone"), KeyError("a defect")])
def test_a_task_that_fails_is_not_tried_again_at_once(error):
    def fail() -> None:
        raise error

    assert pauses_of(fail, 0.0) == [0.0, 0.1, 0.1, 0.1]
    assert pauses_of(fail, 0.5) == [0.5] * 4


def test_a_task_that_succeeds_after_an_error_has_its_own_pause_again():
    outcomes = iter([MetadataLost("gone"), None, None])

    def run() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    assert pauses_of(run, 0.0) == [0.0, 0.1, 0.0, 0.0]
