"""Retention of tables: whole files, and a first offset that advances with them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import isolog
from isolog.errors import OffsetEvicted
from spark_stream.client.log import Log
from spark_stream.lake.delta.actions import AddFile
from spark_stream.lake.retention import OldFile, expired, newest_ms
from spark_stream.structs import INT64_MAX
from tests.lake_worker.lake_tables import rows_of, table_of
from tests.support import eventually

NUMBERS = pa.schema([("n", pa.int64())])


def file(path: str, newest_ms: int, size: int = 10, **ranges: tuple[int, int]) -> OldFile:
    return OldFile(path, size, newest_ms, {int(name[1:]): each for name, each in ranges.items()})


def paths(found: list[OldFile]) -> list[str]:
    return [each.path for each in found]


def test_files_older_than_the_retention_expire():
    files = [
        file("c", 30, p0=(20, 29)),
        file("a", 10, p0=(0, 9)),
        file("b", 20, p0=(10, 19)),
        file("d", 5, p1=(0, 9)),
    ]
    assert paths(expired(files, 20, -1)) == ["a", "d"]
    assert paths(expired(files, 21, -1)) == ["a", "d", "b"]
    assert expired(files, None, -1) == []


def test_a_file_has_the_time_of_its_last_record_or_its_own():
    stats = '{"minValues": {}, "maxValues": {"_timestamp": "1970-01-01T00:00:05Z"}}'
    known = AddFile("a", 1, modification_time=9_000, stats=stats)
    unknown = AddFile("b", 1, modification_time=9_000, stats='{"numRecords": 3}')
    neither = AddFile("c", 1, modification_time=0)
    found = [newest_ms(each, each.statistics.newest) for each in (known, unknown, neither)]
    assert found == [5_000, 9_000, INT64_MAX]


def test_a_file_before_or_between_recent_ones_stays():
    files = [file("a", 30, p0=(0, 9)), file("b", 10, p0=(10, 19)), file("c", 30, p0=(20, 29))]
    assert expired(files, 20, -1) == []


def test_files_of_several_partitions_go_with_all_others_that_overlap():
    """Another program may have compacted them."""
    mixed = file("mixed", 10, p0=(0, 19), p1=(0, 5))
    inside, after = file("inside", 11, p0=(5, 9)), file("after", 30, p1=(6, 9))
    assert paths(expired([mixed, inside, after], 20, -1)) == ["mixed", "inside"]
    assert expired([mixed, file("inside", 25, p0=(5, 9)), after], 20, -1) == []
    assert expired([file("unknown", 1)], 20, -1) == []


@pytest.mark.parametrize(("kept", "expected"), [(0, "abc"), (10, "ab"), (11, "a"), (30, "")])
def test_each_partition_keeps_at_least_its_size(kept: int, expected: str):
    files = [file(name, 1, p0=(at, at)) for at, name in enumerate("abc")]
    assert paths(expired(files, None, kept)) == list(expected)


# -- a real table ---------------------------------------------------------------------------------


@pytest.fixture
def log(broker):
    with isolog.connect(broker.address) as found:
        yield found


def append(log: Log, first: int, partition: int = 0) -> None:
    with log.producer() as producer:
        schema = log.describe("t").schema
        rows = pa.table({name: range(first, first + 10) for name in schema.names}, schema=schema)
        producer.append("t", rows, partition=partition).result(60)


def made(log: Log, root, schema: pa.Schema = NUMBERS, **config: str) -> isolog.LakeWorker:
    names = {name.replace("_", "."): value for name, value in config.items()}
    log.create_topic("t", partitions=2, schema=schema, config=names)
    log.create_lake("l", "t", root)
    return isolog.LakeWorker(log, "l")


def test_the_table_keeps_its_size_and_readers_start_at_its_first_offset(log, tmp_path):
    worker = made(log, tmp_path, local_retention_bytes="1", retention_bytes="1")
    for at in range(3):
        append(log, at * 10)
        append(log, at * 10, partition=1)
        worker.run_once()
    topic = log.describe("t")
    table = table_of(tmp_path, "t")
    assert [table.first_offset(topic.id, p) for p in (0, 1)] == [20, 20]
    assert [table.offset(topic.id, p) for p in (0, 1)] == [30, 30]
    found = DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert sorted(found["_offset"].to_pylist()) == sorted(2 * list(range(20, 30)))
    log.trim("t", {0: 25, 1: 25})
    rows = log.read("t", metadata=True)
    assert sorted(set(rows["_offset"].to_pylist())) == list(range(20, 30))
    with pytest.raises(OffsetEvicted):
        log.read("t", start={0: 5, 1: 5})


def test_the_retention_of_a_topic_without_a_local_one_is_that_of_the_log(log, tmp_path):
    worker = made(log, tmp_path, retention_bytes="1")
    for at in range(3):
        append(log, at * 10)
        worker.run_once()
    assert rows_of(tmp_path, "t").num_rows == 30


WIDE = pa.schema([*NUMBERS, *(pa.field(f"c{at}", pa.int64()) for at in range(32))])
"""deltalake writes no statistics of the columns after these, such as the time of a record."""


@pytest.mark.parametrize("schema", [NUMBERS, WIDE], ids=["narrow", "wide"])
def test_files_that_another_program_compacted_expire_too(log, tmp_path, schema):
    worker = made(log, tmp_path, schema, local_retention_bytes="1")
    for at in range(3):
        append(log, at * 10)
        append(log, at * 10, partition=1)
        worker.run_once()
    DeltaTable(tmp_path / "t").optimize.compact()
    ((path, file),) = table_of(tmp_path, "t").files.items()
    assert (file.statistics.newest is None) == (schema is WIDE)
    assert set(pq.read_table(tmp_path / "t" / path)["_partition"].to_pylist()) == {0, 1}
    log.alter_topic("t", config={"retention.ms": "100"})
    append(log, 30)
    eventually(lambda: worker.run_once() or path not in table_of(tmp_path, "t").files)
    topic, table = log.describe("t"), table_of(tmp_path, "t")
    assert table.first_offset(topic.id, 0) in (30, 40)  # the last rows may be old already
    assert table.first_offset(topic.id, 1) == 30
    DeltaTable(tmp_path / "t").to_pyarrow_table()
