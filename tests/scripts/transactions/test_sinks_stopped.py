"""Runs that were given up: to their latest plan, and not remembered for ever."""

from __future__ import annotations

import pytest

from spark_stream.consistency.transactions.sinks import Stop
from spark_stream.scripts.steps import ListRecords
from spark_stream.scripts.transactions.sinks import (
    STOPPED_KEPT_MS,
    delete_old_stops,
    record_stop,
    stopped_until,
)
from tests.scripts.on_store import OnStore
from tests.simulation.store import MemoryRecords, MemoryStore


@pytest.fixture
def on() -> OnStore:
    return OnStore(MemoryStore(MemoryRecords()))


def test_a_run_is_given_up_to_its_latest_plan(on):
    assert on.run(stopped_until("run")) == -1
    on.run(record_stop(Stop("run", 7, 0), 0))
    on.run(record_stop(Stop("run", 5, 0), 1))
    assert on.run(stopped_until("run")) == 7
    assert on.run(stopped_until("other")) == -1


def test_the_later_of_two_concurrent_stops_stays(on):
    late = on.start(record_stop(Stop("run", 5, 0), 0))
    late.advance()  # it has read
    on.run(record_stop(Stop("run", 7, 0), 0))
    late.end()
    assert on.run(stopped_until("run")) == 7


def test_old_stops_are_removed_and_read_one_by_one(on):
    on.run(record_stop(Stop("old", 1, 0), 0))
    on.run(record_stop(Stop("young", 1, 0), 1))
    on.run(record_stop(Stop("new", 1, 0), STOPPED_KEPT_MS + 1))
    assert not [step for step in on.steps if isinstance(step, ListRecords)]
    on.run(delete_old_stops(STOPPED_KEPT_MS + 1))
    assert [on.run(stopped_until(run)) for run in ("old", "young", "new")] == [-1, 1, 1]
