"""Exactly once from ``foreachBatch``: ``sinkId`` and ``batchId`` identify a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import isolog
from tests.spark.conftest import Queries, ended
from tests.spark.copies import kill_session, source
from tests.spark.sink_driver import both_sinks
from tests.spark.test_stream_source import NUMBERS, wait_until

__all__ = ["source"]

ROWS = 300


def made(log: isolog.Log, topic: str) -> list[str]:
    """Two new topics."""
    topics = [f"{topic}-first", f"{topic}-second"]
    for name in topics:
        log.create_topic(name, 2, schema=NUMBERS)
    return topics


def written(log: isolog.Log, topic: str) -> list[int]:
    return sorted(log.read(topic, isolation="read_committed")["n"].to_pylist())


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_task.py
def test_a_failure_between_two_sinks_writes_each_row_once(
    queries: Queries, log: isolog.Log, source: str, topic: str, tmp_path: Path
) -> None:
    """The first sink has the batch, the second has not, and Spark replays it."""

    def between(batch_id: int) -> None:
        if batch_id == 1:
            raise RuntimeError("it fails between the two sinks")

    topics = made(log, topic)
    place = (queries.spark, queries.path, source, topics, tmp_path / "checkpoint")
    assert "it fails between the two sinks" in str(ended(both_sinks(*place, between)))
    assert [len(written(log, name)) for name in topics] == [200, 100]
    query = both_sinks(*place)
    assert ended(query) is None
    assert query.recentProgress[0]["batchId"] == 1
    assert [written(log, name) for name in topics] == [list(range(ROWS))] * 2


@pytest.mark.chaos
@pytest.mark.full
def test_a_driver_killed_between_two_sinks_writes_each_row_once(
    queries: Queries, log: isolog.Log, source: str, topic: str, tmp_path: Path
) -> None:
    """The first sink has the batch, the second has not, and Spark replays it."""
    topics = made(log, topic)
    job = {
        "path": queries.path,
        "source": source,
        "queries": [],
        "foreach": {"topics": topics, "checkpoint": str(tmp_path / "checkpoint")},
        "marks": str(tmp_path),
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    with (tmp_path / "driver.log").open("w") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", str(tmp_path / "job.json")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:

        def between() -> bool:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()
            return (tmp_path / "between").exists()

        wait_until(between, "the driver is between the two sinks", 200)
    finally:
        kill_session(driver)
    assert [len(written(log, name)) for name in topics] == [200, 100]
    query = both_sinks(queries.spark, queries.path, source, topics, tmp_path / "checkpoint")
    assert ended(query) is None
    assert query.recentProgress[0]["batchId"] == 1
    assert [written(log, name) for name in topics] == [list(range(ROWS))] * 2
