"""The state of a lake: by its recorded stop, its tables and the last report of its worker."""

from __future__ import annotations

import pytest

from spark_stream.consistency.lakes import LakeDescription
from spark_stream.errors import LakeStopped, LakeUnavailable, UnknownTopic
from spark_stream.lake_worker.status import (
    ABSENT_MS,
    LakeState,
    TopicStatus,
    WorkerState,
    state_of,
    worker_of,
)

NOW_MS = 10_000_000
FRESHNESS_MS = 60_000
DUE_MS = ABSENT_MS + 2 * FRESHNESS_MS
STOP, WAIT = LakeStopped("restored"), LakeUnavailable("no answer")


def test_the_state_of_a_lake_is_that_of_its_topics_that_exist():
    lake = LakeDescription("l", "i", "/l", (), FRESHNESS_MS, recorded_ms=NOW_MS)
    there = TopicStatus("t", 1, 1, 1, 1, 0, None)
    gone = TopicStatus("u", 1, 1, 1, 1, None, UnknownTopic("deleted"))
    stopped = TopicStatus("v", 1, 1, 1, 1, 0, STOP)
    assert state_of(lake, [there, gone], NOW_MS) is LakeState.UP_TO_DATE
    assert state_of(lake, [gone, stopped, there], NOW_MS) is LakeState.STOPPED
    assert state_of(lake, [gone], NOW_MS) is LakeState.STOPPED


@pytest.mark.parametrize(
    ("stopped", "age_ms", "lags", "problem", "state"),
    [
        ("", 0, [0, 0], None, LakeState.UP_TO_DATE),
        ("", None, [0], None, LakeState.UP_TO_DATE),
        ("", DUE_MS + 1, [0], None, LakeState.UP_TO_DATE),
        ("", DUE_MS, [0, 1], None, LakeState.CATCHING_UP),
        ("", DUE_MS + 1, [0, 1], None, LakeState.NO_WORKER),
        ("", None, [1], None, LakeState.NO_WORKER),
        ("it was restored", 0, [0], None, LakeState.STOPPED),
        ("", 0, [0], STOP, LakeState.STOPPED),
        ("", 0, [None], WAIT, LakeState.UNKNOWN),
        ("it was restored", 0, [None], WAIT, LakeState.STOPPED),
    ],
)
def test_state_of_a_lake(stopped, age_ms, lags, problem, state):
    recorded_ms = None if age_ms is None else NOW_MS - age_ms
    lake = LakeDescription(
        "l", "i", "/l", (), FRESHNESS_MS, recorded_ms=recorded_ms, stopped=stopped
    )
    topics = [TopicStatus(f"t{lag}", 1, 1, 1, 1, lag, problem) for lag in lags]
    assert state_of(lake, topics, NOW_MS) is state


@pytest.mark.parametrize(
    ("stopped", "age_ms", "state"),
    [
        ("", None, WorkerState.ABSENT),
        ("", DUE_MS, WorkerState.REPORTING),
        ("", DUE_MS + 1, WorkerState.ABSENT),
        ("it was restored", 0, WorkerState.STOPPED),
    ],
)
def test_the_state_of_a_worker_is_that_of_its_last_report(stopped, age_ms, state):
    """Also if all tables have all records."""
    recorded_ms = None if age_ms is None else NOW_MS - age_ms
    lake = LakeDescription(
        "l", "i", "/l", (), FRESHNESS_MS, recorded_ms=recorded_ms, stopped=stopped
    )
    assert worker_of(lake, NOW_MS) is state
