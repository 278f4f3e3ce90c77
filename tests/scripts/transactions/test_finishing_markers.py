"""Markers are written, and the script waits until they are replicated, for a limited time."""

from __future__ import annotations

from typing import Any

import pytest

from isolog.errors import IsologError, LeaderUnavailable, NotLeader
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch
from spark_stream.consistency.transactions.transactions import Joined, State, Transaction
from spark_stream.scripts.steps import (
    IsReplicated,
    Marked,
    Pause,
    ReadEpochs,
    Script,
    Together,
    WriteMarkers,
)
from spark_stream.scripts.transactions.finishing import write_markers

AT = [Joined("t", "id", 0), Joined("t", "id", 1)]
DECIDED = Transaction("loader", state=State.COMMITTING, number=7, producer_id=3, epoch=2)


class Leaders:
    """Answer the script's steps. The progress of replication is given check by check."""

    def __init__(self, looks: list[list[Any]]) -> None:
        self.looks = looks
        self.looked = 0
        self.pauses = 0

    def run(self, script: Script[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                step = script.send(answer)
            except StopIteration as done:
                return done.value
            answer = self._answer(step)

    def _answer(self, step: object) -> Any:
        if isinstance(step, Pause):
            self.pauses += 1
            return None
        if isinstance(step, ReadEpochs):
            return [LeaderEpoch(1) for _ in step.places]
        assert isinstance(step, Together)
        if isinstance(step.steps[0], WriteMarkers):
            return [Marked(EntryIndex(9), LeaderEpoch(1), replicated=False) for _ in step.steps]
        assert all(isinstance(each, IsReplicated) for each in step.steps)
        found = self.looks[min(self.looked, len(self.looks) - 1)]
        self.looked += 1
        return found[: len(step.steps)]


def looks_in_all() -> int:
    """The number of checks before the script gives up."""
    leaders = Leaders([[False, False]])
    leaders.run(write_markers(DECIDED, AT))
    return leaders.looked


def test_an_error_about_unreplicated_markers_names_the_partition():
    failure = Leaders([[True, False], [False]]).run(write_markers(DECIDED, AT))
    assert isinstance(failure, LeaderUnavailable)
    assert failure.details == {"topic": "t", "partition": 1}


@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_markers_replicated_at_a_late_check_are_in_time(earlier):
    waits = looks_in_all() - 1 - earlier
    leaders = Leaders([*([[False, False]] * waits), [True, True]])
    assert leaders.run(write_markers(DECIDED, AT)) is None
    assert leaders.looked == waits + 1


def test_a_replaced_leader_is_reported_immediately():
    replaced: IsologError = NotLeader("another leads")
    leaders = Leaders([[False, replaced]])
    assert leaders.run(write_markers(DECIDED, AT)) is replaced
    assert leaders.looked == 1
