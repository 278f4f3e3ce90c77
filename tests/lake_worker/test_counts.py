"""The lag of a worker, its series by real scrapes, and its recorded stop."""

from __future__ import annotations

import socket

import pyarrow as pa
import pytest

import isolog
from isolog.errors import LakeStopped
from spark_stream.lake_worker.counts import Freshness, serve_counts
from tests.broker.metrics.scraping import Samples, page, scraped
from tests.lake_worker.lake_tables import table_of

NUMBERS = pa.schema([("n", pa.int64())])
L = {"lake": "l"}


@pytest.fixture
def log(broker):
    with isolog.connect(broker.address) as found:
        yield found


def append(log: isolog.Log, first: int, count: int) -> None:
    with log.producer() as producer:
        rows = pa.table({"n": range(first, first + count)}, schema=NUMBERS)
        producer.append("t", rows).result(60)


def test_tables_are_as_old_as_the_last_look_that_they_cover():
    lag = Freshness(0)
    place = ("t", 0)
    lag.note(10, {place: 5}, {place: 5})
    assert (lag.seconds(11), lag.records) == (1, 0)
    lag.note(20, {place: 9}, {place: 7})
    lag.note(30, {place: 12}, {place: 8})
    assert (lag.seconds(30), lag.records) == (20, 4)
    lag.note(40, {place: 15}, {place: 12})
    assert (lag.seconds(40), lag.records) == (10, 3)
    lag.note(50, {place: 15, ("t", 1): 1}, {place: 15})
    assert (lag.seconds(50), lag.records) == (10, 1)


def test_lag_of_tables_that_never_catch_up_takes_bounded_memory():
    lag = Freshness(0)
    for at in range(5_000):
        lag.note(at, {("t", 0): at + 1}, {("t", 0): at // 2})
    assert len(lag._seen) <= 512
    assert 2_500 <= lag.seconds(5_000) <= 2_500 + 5_000 / 128


def test_a_worker_shows_its_lag_commits_conflicts_and_errors(log, tmp_path):
    pytest.importorskip("prometheus_client")
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path, freshness=1)
    worker, other = isolog.LakeWorker(log, "l"), isolog.LakeWorker(log, "l")
    bound = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    stop = serve_counts(bound, worker.counts)

    def series() -> Samples:
        return scraped(address, "/metrics")

    try:
        assert page(address, "/health/ready") == (503, "no round has ended\n")
        append(log, 0, 100)
        worker.run_once()
        assert page(address, "/health/ready") == (200, "ok\n")
        found = series()
        assert found("isolog_lake_worker_lag_records", **L) == 0
        assert found("isolog_lake_worker_lag_seconds", **L) < 60
        assert found("isolog_lake_worker_freshness_seconds", **L) == 1
        assert found("isolog_lake_worker_written_records_total", **L) == 100
        (file,) = table_of(tmp_path, "t").files.values()
        assert found("isolog_lake_worker_written_bytes_total", **L) == file.size
        commits = found("isolog_lake_worker_commit_seconds_count", **L)
        assert commits == 4  # two tables are created and written
        for at in range(1, 5):
            append(log, at * 100, 100)
            (other if at == 2 else worker).run_once()
        found = series()
        assert found("isolog_lake_worker_written_records_total", **L) == 400
        assert found("isolog_lake_worker_merged_files_total", **L) == 4
        in_tables = [*table_of(tmp_path, "t").files, *table_of(tmp_path, "_cuts").files]
        assert found("isolog_lake_worker_table_files", **L) == len(in_tables)
        put = worker._driver._store.put_if_absent
        worker._driver._store.put_if_absent = lambda path, data: put(path, data) and False
        append(log, 500, 10)
        worker.run_once()  # it reads its own version as one of another writer
        assert series()("isolog_lake_worker_conflicts_total", **L) >= 1
        log.trim("t", "latest")
        log.delete_topic("t")
        with pytest.raises(LakeStopped):
            worker.run_once()
        who = {**L, "code": "LAKE_STOPPED"}
        assert series()("isolog_lake_worker_refused_total", **who) == 1
        status, text = page(address, "/health/ready")
        assert (status, "were deleted" in text) == (503, True)
    finally:
        stop()


def test_a_stop_is_recorded_until_a_worker_makes_progress(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    append(log, 0, 10)
    log.create_lake("l", "t", tmp_path)
    isolog.LakeWorker(log, "l").run_once()
    before = log.describe_lake("l")
    assert before.stopped == ""
    metadata = tmp_path / "t" / "_delta_log" / f"{1:020d}.json"
    whole = metadata.read_bytes()
    metadata.write_bytes(b"no actions")
    with pytest.raises(LakeStopped):
        isolog.LakeWorker(log, "l").run_once()
    after = log.describe_lake("l")
    assert "version 1 of the table t cannot be read" in after.stopped
    assert after.recorded_ms == before.recorded_ms
    metadata.write_bytes(whole)
    isolog.LakeWorker(log, "l").run_once()
    assert log.describe_lake("l").stopped == ""
