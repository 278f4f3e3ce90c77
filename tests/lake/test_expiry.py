"""Expired versions in real folders: readers, paused workers, and files that were replaced."""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import isolog
from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import checkpoint_path
from spark_stream.lake.delta.table import Table
from spark_stream.lake.expiry import (
    DAY_MS,
    FILE_RETENTION,
    FILE_RETENTION_MS,
    LOG_RETENTION,
    LOG_RETENTION_MS,
    duration_ms,
    expire_table,
    possible_floors,
    retention_properties,
)
from spark_stream.lake.steps import CHECKPOINT, VERSION, LogFile
from spark_stream.lake.storage.snapshots import orphans, read_floor, read_table
from spark_stream.lake.storage.stores import open_store
from spark_stream.lake_worker.driver import Driver
from tests.lake.tables import new_table

NUMBERS = pa.schema([("n", pa.int64())])
ROUNDS = 25


@pytest.fixture
def log(broker):
    with isolog.connect(broker.address) as found:
        yield found


def made(log: isolog.Log, root) -> isolog.LakeWorker:
    """Return the worker of a lake whose table has some versions, and three checkpoints."""
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", root)
    worker = isolog.LakeWorker(log, "l")
    write(log, worker, ROUNDS)
    return worker


def write(log: isolog.Log, worker: isolog.LakeWorker, rounds: int) -> None:
    with log.producer() as producer:
        for _ in range(rounds):
            rows = pa.table({"n": pa.array([1, 2], pa.int64())})
            producer.append("t", rows, partition=0).result(60)
            worker.run_once()


def make_old(root, monkeypatch, days: int = 40) -> None:
    """Make the present versions older by this time."""
    seconds = time.time() - days * 86_400
    for path in (root / "t" / "_delta_log").iterdir():
        os.utime(path, (seconds, seconds))
    monkeypatch.setattr(Driver, "now_ms", lambda _: time.time_ns() // 1_000_000 + days * DAY_MS)


def test_old_versions_expire_and_readers_continue(log, tmp_path, monkeypatch):
    worker = made(log, tmp_path)
    store = open_store(str(tmp_path))
    before = sorted(path.name for path in tmp_path.glob("t/*.parquet"))
    assert len(before) > len(DeltaTable(tmp_path / "t").file_uris())  # some were merged
    make_old(tmp_path, monkeypatch)
    write(log, isolog.LakeWorker(log, "l"), 1)
    floor = read_floor(store, "t")
    assert floor > 10
    names = {path.name for path in (tmp_path / "t" / "_delta_log").iterdir()}
    assert min(int(name[:20]) for name in names if name[0] == "0") == floor
    table = DeltaTable(tmp_path / "t")
    assert table.to_pyarrow_table().num_rows == 2 * (ROUNDS + 1)
    assert rows_from(store) == 2 * (ROUNDS + 1)
    assert {path.name for path in tmp_path.glob("t/*.parquet")} < set(before) | {
        uri.rpartition("/")[2] for uri in table.file_uris()
    }
    assert not orphans(store, "t", time.time_ns() // 1_000_000)
    with pytest.raises(LakeStopped, match=r"version 3 of the table t has expired"):
        read_table(store, "t", 3)
    assert read_table(store, "t", floor).version == floor
    write(log, worker, 1)  # its state is older than the expiry
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == 2 * (ROUNDS + 2)


def rows_from(store) -> int:
    import pyarrow.parquet as pq

    table = read_table(store, "t")
    return sum(pq.read_metadata(store.open_read(f"t/{path}")).num_rows for path in table.files)


def test_a_put_at_the_place_of_an_expired_version_does_not_count(log, tmp_path, monkeypatch):
    """The worker is paused right before the put. The put succeeds, because the version expired."""
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    paused = isolog.LakeWorker(log, "l")
    write(log, paused, 1)
    put, results = paused._store.put_if_absent, dict[str, bool]()

    def put_late(path, data):
        if not results:
            results[path] = False
            write(log, isolog.LakeWorker(log, "l"), ROUNDS)
            make_old(tmp_path, monkeypatch)
            write(log, isolog.LakeWorker(log, "l"), 1)
        results[path] = put(path, data)
        return results[path]

    monkeypatch.setattr(paused._store, "put_if_absent", put_late)
    with log.producer() as producer:
        producer.append("t", pa.table({"n": pa.array([7, 8], pa.int64())}), partition=0).result(60)
    paused.run_once()
    floor = read_floor(open_store(str(tmp_path)), "t")
    late = next(iter(results))
    assert results[late]
    assert int(late[-25:-5]) < floor
    write(log, paused, 2)
    in_table = DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert sorted(in_table["_offset"].to_pylist()) == list(range(2 * (ROUNDS + 5)))
    assert log.describe_lake("l").topics[0].tiered == {0: 2 * (ROUNDS + 5)}


def test_readers_bear_a_last_checkpoint_that_expired(log, tmp_path, monkeypatch):
    """A late write may move the file back. The floor names a checkpoint that exists."""
    made(log, tmp_path)
    last = tmp_path / "t" / "_delta_log" / "_last_checkpoint"
    make_old(tmp_path, monkeypatch)
    write(log, isolog.LakeWorker(log, "l"), 1)
    last.write_text('{"version":9,"size":3}')
    assert not (tmp_path / "t" / checkpoint_path(9)).exists()
    assert rows_from(open_store(str(tmp_path))) == 2 * (ROUNDS + 1)
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == 2 * (ROUNDS + 1)


def test_a_lost_checkpoint_at_the_floor_stops(log, tmp_path, monkeypatch):
    made(log, tmp_path)
    make_old(tmp_path, monkeypatch)
    write(log, isolog.LakeWorker(log, "l"), 1)
    store = open_store(str(tmp_path))
    for path in (tmp_path / "t" / "_delta_log").glob("*.parquet"):
        path.unlink()
    with pytest.raises(LakeStopped, match="removed"):
        read_table(store, "t")


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("interval 2 days", 2 * DAY_MS),
        ("INTERVAL 1 week 12 hours", 7 * DAY_MS + DAY_MS // 2),
        ("30 minutes", 1_800_000),
        ("", LOG_RETENTION_MS),
        ("interval soon", LOG_RETENTION_MS),
        ("interval 1.5 days", LOG_RETENTION_MS),
        ("interval -1 days", LOG_RETENTION_MS),
        ("interval 2 moons", LOG_RETENTION_MS),
    ],
)
def test_durations_are_properties_of_the_table(text, expected_ms):
    table = new_table("t", "i", NUMBERS)
    assert table.metadata is not None
    table.metadata.configuration[LOG_RETENTION] = text
    assert duration_ms(table, LOG_RETENTION, LOG_RETENTION_MS) == expected_ms
    assert duration_ms(table, FILE_RETENTION, FILE_RETENTION_MS) == 7 * DAY_MS
    assert duration_ms(Table("u"), LOG_RETENTION, 5) == 5


@pytest.mark.parametrize("ms", [1, 1_500, 90_000, 1_800_000, 12 * DAY_MS // 24, 30 * DAY_MS])
def test_durations_of_a_lake_are_read_back_from_the_properties(ms):
    table = new_table("t", "i", NUMBERS)
    assert table.metadata is not None
    table.metadata.configuration.update(retention_properties(ms, None))
    assert duration_ms(table, LOG_RETENTION, LOG_RETENTION_MS) == ms
    assert duration_ms(table, FILE_RETENTION, FILE_RETENTION_MS) == FILE_RETENTION_MS
    table.metadata.configuration.update(retention_properties(None, ms))
    assert duration_ms(table, FILE_RETENTION, FILE_RETENTION_MS) == ms


def test_a_floor_is_an_old_version_with_a_checkpoint():
    files = [LogFile("", version, VERSION, 10 * version) for version in range(40)]
    files += [LogFile("", version, CHECKPOINT, 1_000) for version in (10, 20, 30)]
    files.append(LogFile("", 25, "checkpoint.0000000001.0000000002.parquet", 0))
    assert possible_floors(files, 290) == [20, 10]
    assert possible_floors(files, 100) == []


def test_merged_files_stay_if_the_new_file_is_missing(log, tmp_path, monkeypatch):
    worker = made(log, tmp_path)
    merged = [path for path in tmp_path.glob("t/*.parquet") if path.name.startswith("merged-")]
    old = {path.name for path in tmp_path.glob("t/*.parquet")} - {path.name for path in merged}
    for path in merged:
        path.unlink()
    monkeypatch.setattr(Driver, "now_ms", lambda _: time.time_ns() // 1_000_000 + 40 * DAY_MS)
    worker._reset()
    with pytest.raises(LakeStopped, match="has files that were removed"):
        worker._driver.run(expire_table(worker._tables.tables["t"], {}))
    assert {path.name for path in tmp_path.glob("t/*.parquet")} == old


def test_a_worker_whose_clock_is_ahead_removes_no_files(log, tmp_path, monkeypatch):
    made(log, tmp_path)
    log.alter_topic("t", config={"retention.ms": "86400000", "local.retention.ms": "86400000"})
    before = {path.name for path in tmp_path.glob("t/*.parquet")}
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 40 * DAY_MS * 1_000_000)
    write(log, isolog.LakeWorker(log, "l"), 2)
    assert before < {path.name for path in tmp_path.glob("t/*.parquet")}
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == 2 * (ROUNDS + 2)
