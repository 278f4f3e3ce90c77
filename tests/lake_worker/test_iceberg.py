"""Iceberg tables of a lake, in a real catalog: rows at each snapshot, races, lost answers, others.

Every test ends with the same files in both tables, or with the reason why they differ.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.errors import InvalidOption, LakeStopped, LakeUnavailable
from spark_stream.lake.expiry import DAY_MS
from spark_stream.lake_worker import iceberg as module
from spark_stream.lake_worker.iceberg import VERSION, IcebergTables
from spark_stream.lake_worker.status import orphans_of, topics_of
from tests.lake.storage.object_server import object_server
from tests.lake_worker.lake_tables import rows_of, table_of

pyiceberg_catalog = pytest.importorskip("pyiceberg.catalog")
exceptions = pytest.importorskip("pyiceberg.exceptions")
rest_catalog = pytest.importorskip("tests.lake_worker.rest_catalog").rest_catalog

NUMBERS = pa.schema([("n", pa.int32()), ("text", pa.string())])


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A catalog ``lakes`` in SQLite, as the worker finds it in its environment."""
    monkeypatch.setattr(pyiceberg_catalog._ENV_CONFIG, "config", _configuration(tmp_path))
    return pyiceberg_catalog.load_catalog("lakes")


def _configuration(folder: Path) -> dict[str, Any]:
    return {"catalog": {"lakes": {"uri": f"sqlite:///{folder}/catalog.db"}}}


@pytest.fixture
def log(broker):
    with isolog.connect(broker.address) as found:
        yield found


class Shop:
    """A lake of the topic ``t``, with its Iceberg table ``l.t``."""

    def __init__(self, log: isolog.Log, root: Path, catalog: Any) -> None:
        self.log, self.root, self.catalog = log, root, catalog
        log.create_topic("t", partitions=2, schema=NUMBERS)
        self.lake = log.create_lake("l", "t", root, iceberg="lakes")

    def append(self, first: int, count: int, partition: int = 0) -> None:
        values = range(first, first + count)
        rows = pa.table({"n": pa.array(values, pa.int32()), "text": [f"no. {n}" for n in values]})
        with self.log.producer() as producer:
            producer.append("t", rows, partition=partition).result(60)

    def worker(self) -> isolog.LakeWorker:
        return isolog.LakeWorker(self.log, "l")

    @property
    def table(self) -> Any:
        return self.catalog.load_table("l.t")

    def check(self, snapshot: Any = None) -> int:
        """Compare a snapshot with the Delta version that it names. Return the version."""
        snapshot = snapshot or self.table.current_snapshot()
        version = int(snapshot.summary.additional_properties[VERSION])
        rows = self.table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        if not table_of(self.root, "t", version).files:
            assert rows.num_rows == 0
            return version
        want = rows_of(self.root, "t", version)
        order = [("_topic_partition", "ascending"), ("_offset", "ascending")]
        rows = rows.sort_by(order)
        for name in want.column_names:
            have = rows["_topic_partition" if name == "_partition" else name]
            assert have.to_pylist() == want[name].to_pylist(), (name, version)
        return version

    def versions(self) -> list[int]:
        return [self.check(each) for each in self.table.snapshots()]


@pytest.fixture
def shop(log, tmp_path, catalog):
    return Shop(log, tmp_path / "a lake", catalog)


def test_each_snapshot_has_the_rows_of_its_delta_version(shop):
    worker = shop.worker()
    for at in range(9):
        shop.append(at * 10, 10, partition=at % 2)
        assert worker.round().problem is None
    found = shop.versions()
    assert found == sorted(set(found))
    assert len(found) == 9
    assert found[-1] == worker.round().versions["t"]
    operations = {each.summary.operation.value for each in shop.table.snapshots()}
    assert operations == {"append", "overwrite"}  # small files were merged
    [status] = topics_of(shop.log, shop.lake)
    assert (status.iceberg, status.problem) == (status.version, None)


def test_an_empty_topic_and_aborted_records_advance_the_version(shop):
    worker = shop.worker()
    worker.run_once()
    assert shop.table.scan().to_arrow().num_rows == 0
    with shop.log.producer(transactional_id="x") as producer:
        producer.begin_transaction()
        rows = pa.table({"n": pa.array([1], pa.int32()), "text": ["x"]})
        producer.append("t", rows, partition=0).result(60)
        producer.abort_transaction()
    shop.append(0, 1)
    worker.run_once()
    shop.check()


def test_a_worker_killed_before_the_mirror_is_continued_by_the_next(shop, monkeypatch):
    shop.append(0, 10)
    shop.worker().run_once()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTables, "sync", killed)
        for at in (10, 20):
            shop.append(at, 10)
            with pytest.raises(KeyboardInterrupt):
                shop.worker().run_once()
    [status] = topics_of(shop.log, shop.lake)
    assert status.iceberg is not None
    assert status.version - status.iceberg == 2
    shop.worker().run_once()
    assert shop.check() == status.version


def test_columns_are_added_and_old_snapshots_keep_their_columns(shop):
    nested = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float32()))])
    worker = shop.worker()
    shop.append(0, 5)
    worker.run_once()
    wider = NUMBERS.append(pa.field("more", nested)).append(pa.field("_file", pa.string()))
    shop.log.alter_topic("t", schema=wider)
    row = {"n": 9, "text": "x", "more": {"a": 1, "b": [0.5, None]}, "_file": "f"}
    with shop.log.producer() as producer:
        rows = pa.Table.from_pylist([row], schema=wider)
        producer.append("t", rows, partition=1).result(60)
    worker.run_once()
    found = shop.table.scan().to_arrow()
    assert found.schema.names[:2] == ["n", "text"]
    assert {"_topic_partition", "_topic_file"} <= set(found.schema.names)
    by_n = {each["n"]: each for each in found.to_pylist()}
    assert by_n[9]["more"] == {"a": 1, "b": [0.5, None]}
    assert (by_n[9]["_topic_file"], by_n[0]["more"]) == ("f", None)


def test_all_types_of_columns_arrive(log, tmp_path, catalog):
    schema = (
        "a boolean, b tinyint, c bigint, d float, e decimal(5,2), f string, g binary, h date,"
        " i timestamp, j timestamp_ntz, k array<int>, l map<string,struct<x:int,y:date>>"
    )
    log.create_topic("types", schema=schema)
    kinds = log.describe("types").schema
    empty = pa.RecordBatch.from_pylist([dict.fromkeys(kinds.names)], schema=kinds)
    with log.producer() as producer:
        producer.append("types", empty).result(60)
    log.create_lake("l", "types", tmp_path / "lake", iceberg="lakes.other")
    isolog.LakeWorker(log, "l").run_once()
    found = catalog.load_table("other.types").scan().to_arrow()
    assert found.num_rows == 1
    assert found.schema.field("e").type == pa.decimal128(38, 2)


def lose_answers(tables: IcebergTables, lost: Callable[[], Exception | None]) -> None:
    inner = tables._commit_table

    def commit(*given: Any, **named: Any) -> Any:
        answer = inner(*given, **named)
        error = lost()
        if error is not None:
            raise error
        return answer

    tables._commit_table = commit


@pytest.mark.parametrize(
    "error", [OSError("connection reset"), exceptions.CommitFailedException("seen twice")]
)
def test_a_lost_answer_adds_no_file_twice_and_damages_nothing(shop, error):
    """A refusal may be the second answer to a commit that succeeded, sent again on its way."""
    worker = shop.worker()
    worker.run_once()
    pending = [error]
    lose_answers(worker._iceberg, lambda: pending.pop() if pending else None)
    for at in range(3):
        shop.append(at * 10, 10)
        worker.run_once()
    assert not pending
    assert shop.versions()[-1] == worker.round().versions["t"]


def test_a_catalog_that_does_not_answer_holds_up_no_delta_table(shop, monkeypatch, caplog):
    worker = shop.worker()
    worker.run_once()
    shop.append(0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(worker._iceberg, "_commit_table", _refuse)
        with pytest.raises(LakeUnavailable, match="refused an operation: no route"):
            worker.run_once()
        assert rows_of(shop.root, "t").num_rows == 10
        assert shop.log.describe_lake("l").topics[0].tiered[0] == 10
        worker.run(lambda _: True)
        assert "stay behind" in caplog.text
    worker.run_once()
    shop.check()


def _refuse(*_: object, **__: object) -> None:
    raise OSError("no route")


def test_two_workers_and_a_worker_with_an_older_version(shop):
    shop.append(0, 10)
    first, second = shop.worker(), shop.worker()
    late = shop.worker()
    late.round()
    behind = late._tables.tables["t"]
    errors = []

    def run(worker: isolog.LakeWorker, partition: int) -> None:
        try:
            for at in range(6):
                shop.append(100 * partition + at, 1, partition)
                worker.run_once()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(worker, at)) for at, worker in enumerate((first, second))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not [each for each in errors if not isinstance(each, LakeUnavailable)]
    first.run_once()
    found = shop.versions()
    assert found == sorted(set(found))
    late._iceberg.sync(behind, late._driver.now_ms())  # an older version of the Delta table
    assert shop.versions() == found


def test_rows_of_another_writer_stop_the_mirror_until_it_is_dropped(shop):
    shop.append(0, 10)
    worker = shop.worker()
    worker.run_once()
    snapshot = shop.table.current_snapshot().snapshot_id
    more = shop.table.scan().to_arrow().slice(0, 1)
    shop.table.append(more)
    shop.append(10, 10)
    with pytest.raises(LakeStopped, match="changed by others"):
        worker.run_once()
    assert rows_of(shop.root, "t").num_rows == 20
    [status] = topics_of(shop.log, shop.lake)
    assert "changed by others" in str(status.problem)
    shop.table.manage_snapshots().rollback_to_snapshot(snapshot).commit()
    worker.run_once()
    shop.check()
    shop.catalog.drop_table("l.t")
    worker.run_once()
    assert len(shop.versions()) == 1


def test_a_table_of_another_program_is_not_touched(shop):
    shop.catalog.create_namespace("l")
    shop.catalog.create_table("l.t", NUMBERS, str(shop.root.parent / "theirs"))
    shop.append(0, 10)
    with pytest.raises(LakeStopped, match="belongs to another lake or program"):
        shop.worker().run_once()
    assert shop.table.current_snapshot() is None


def test_snapshots_expire_by_number_and_their_files_are_orphans(shop, monkeypatch):
    monkeypatch.setattr(module, "_SNAPSHOTS_MAX", 3)
    monkeypatch.setattr(module, "DAY_MS", -(10**15))
    worker = shop.worker()
    for at in range(9):
        shop.append(at, 1)
        worker.run_once()
    assert len(shop.table.snapshots()) == 4  # the last three, and the new one
    shop.versions()
    found = [each.path for each in orphans_of(shop.lake, 0)]
    assert found
    assert all(path.startswith("_iceberg/t/metadata/") for path in found)
    for path in found:
        (shop.root / path).unlink()
    shop.versions()
    worker.run_once()
    shop.check()


def test_snapshots_expire_before_the_files_that_a_merge_replaced(shop, monkeypatch):
    monkeypatch.setattr(module, "FILE_RETENTION_MS", 10**9)
    worker = shop.worker()
    for at in range(3):
        shop.append(at, 1)
        worker.run_once()
    assert len(shop.table.snapshots()) == 3
    monkeypatch.setattr(module, "FILE_RETENTION_MS", -(10**9))
    worker.run_once()  # without a new version
    [snapshot] = shop.table.snapshots()
    assert shop.check(snapshot) == worker.round().versions["t"]
    shop.append(3, 1)
    worker.run_once()
    assert shop.table.scan().to_arrow().num_rows == 4


def test_a_worker_whose_clock_is_ahead_expires_no_snapshot(shop, monkeypatch):
    """As no file of the Delta table: the brokers have the present time."""
    for at in range(3):
        shop.append(at, 1)
        shop.worker().run_once()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 40 * DAY_MS * 1_000_000)
    shop.append(3, 1)
    shop.worker().run_once()
    assert len(shop.table.snapshots()) >= 4


@pytest.mark.parametrize("name", ["sqlite:///x.db", "a.b.c", "user:key@host", ""])
def test_a_lake_has_the_name_of_a_catalog_and_no_address(log, tmp_path, name):
    log.create_topic("t", schema=NUMBERS)
    with pytest.raises(InvalidOption, match="is no name of an Iceberg catalog"):
        log.create_lake("l", "t", tmp_path, iceberg=name)


def test_paths_of_files_are_addresses(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    with pytest.raises(InvalidOption, match="has no '#'"):
        log.create_lake("l", "t", tmp_path / "a#b", iceberg="lakes")


@pytest.fixture
def endpoint(monkeypatch):
    with object_server() as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        yield found.address


def test_files_and_metadata_may_be_objects(log, endpoint, catalog):
    settings = pyiceberg_catalog._ENV_CONFIG.config["catalog"]["lakes"]
    settings |= {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
    catalog = pyiceberg_catalog.load_catalog("lakes")
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", f"s3://lake/{secrets.token_hex(4)}", iceberg="lakes")
    worker = isolog.LakeWorker(log, "l")
    for at in range(5):
        with log.producer() as producer:
            rows = pa.table({"n": pa.array([at], pa.int32()), "text": ["x"]})
            producer.append("t", rows, partition=0).result(60)
        worker.run_once()
    table = catalog.load_table("l.t")
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == list(range(5))
    assert orphans_of(log.describe_lake("l"), 0) == []


def test_a_rest_catalog_loses_refuses_and_repeats_commits(log, tmp_path, catalog):
    with rest_catalog(tmp_path) as server:
        settings = pyiceberg_catalog._ENV_CONFIG.config["catalog"]["lakes"]
        settings |= {"uri": server.address}
        shop = Shop(log, tmp_path / "lake", server.tables)
        workers = [shop.worker(), shop.worker()]
        workers[0].run_once()
        server.refused, server.lost, server.repeated = 0.2, 0.2, 0.3

        def run(worker: isolog.LakeWorker, partition: int) -> None:
            for at in range(8):
                shop.append(at, 1, partition)
                worker.round()  # the next one repeats a failed commit

        threads = [threading.Thread(target=run, args=(workers[at], at)) for at in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert server.faults > 5
        server.refused = server.lost = server.repeated = 0.0
        workers[0].run_once()
        found = shop.versions()
    assert found == sorted(set(found))
    assert shop.table.scan().to_arrow().num_rows == 16


def test_an_unknown_catalog_is_named_with_its_remedy(log, tmp_path, catalog):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path, iceberg="nowhere")
    worker = isolog.LakeWorker(log, "l")
    with pytest.raises(InvalidOption, match="PYICEBERG_CATALOG__NOWHERE__URI"):
        worker.run()
    assert worker.round().versions["t"] >= 0  # the Delta table exists


def test_pyiceberg_is_an_extra(log, tmp_path, monkeypatch):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path, iceberg="lakes")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(InvalidOption, match=r"need the package pyiceberg.*\[iceberg\]"):
        isolog.LakeWorker(log, "l").run_once()
