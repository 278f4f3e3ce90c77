"""Runs that were given up, as records: on every store."""

from __future__ import annotations

import pytest

from spark_stream.cluster.stopped import STOPPED_KEPT_MS, StoppedRuns


@pytest.fixture
def stopped(store) -> StoppedRuns:
    return StoppedRuns(store)


def test_a_run_is_given_up_to_its_latest_plan(stopped):
    assert stopped.planned("run") == -1
    stopped.stop("run", 7, now_ms=0)
    stopped.stop("run", 5, now_ms=1)
    assert stopped.planned("run") == 7
    assert stopped.planned("other") == -1


def test_what_is_old_is_forgotten_when_another_is_given_up(stopped):
    stopped.stop("old", 1, now_ms=0)
    stopped.stop("young", 1, now_ms=1)
    stopped.stop("new", 1, now_ms=STOPPED_KEPT_MS + 1)
    assert [stopped.planned(run) for run in ("old", "young", "new")] == [-1, 1, 1]
