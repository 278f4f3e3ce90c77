"""Reads that span table and log: the same rows and offsets as before the log start moved."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.errors import InvalidOption, LakeIncomplete, LakeStopped, OffsetEvicted
from spark_stream.client import lake_tables
from tests.lake.local_lake import LocalLake

LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]
SCHEMA = (
    "n int, small smallint, name string, price decimal(7,2), day date, moment timestamp,"
    " ok boolean, ratio float, raw binary, tags array<string>, more map<string,int>,"
    " inner struct<a:int,b:string>"
)


def rows(first: int, count: int, schema: pa.Schema) -> pa.Table:
    """Return rows with all kinds of values, and nulls."""
    numbers = range(first, first + count)
    made: dict[str, list[Any]] = {
        "n": list(numbers),
        "small": [n % 7 for n in numbers],
        "name": [None if n % 5 == 0 else f"name {n}" for n in numbers],
        "price": [f"{n}.25" for n in numbers],
        "day": list(numbers),
        "moment": [n * 1_000_001 for n in numbers],
        "ok": [n % 2 == 0 for n in numbers],
        "ratio": [n / 4 for n in numbers],
        "raw": [bytes([n % 256]) for n in numbers],
        "tags": [["a", None, str(n)][: n % 4] for n in numbers],
        "more": [[("k", n)] for n in numbers],
        "inner": [{"a": n, "b": None} if n % 3 else None for n in numbers],
    }
    arrays = [
        pa.array([Decimal(each) for each in made["price"]], field.type)
        if field.name == "price"
        else pa.array(made[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


class Lake:
    """A typed topic of three partitions with transactions, and its lake."""

    def __init__(self, log: isolog.Log, topic: str, root: Path) -> None:
        self.log, self.topic = log, topic
        schema = log.create_topic(topic, partitions=3, schema=SCHEMA).schema
        self.local = LocalLake(log, [topic], root)
        with log.producer(transactional_id=f"{topic}-writer") as producer:
            for number in range(12):
                producer.begin_transaction()
                for partition in range(3):
                    block = rows(1000 * partition + 30 * number, 30, schema)
                    producer.append(topic, block, partition=partition)
                producer.flush()
                if number % 4 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                self.local.run()  # so the lake records a cut after each transaction

    def trim(self, *offsets: int) -> None:
        self.log.trim(self.topic, dict(enumerate(offsets)))
        starts = [each.log_start_offset for each in self.log.describe(self.topic).partitions]
        assert starts == list(offsets)


@pytest.fixture
def lake(log: isolog.Log, topic: str, tmp_path: Path) -> Lake:
    return Lake(log, topic, tmp_path)


def all_reads(lake: Lake, isolation: str, moments: list[Any]) -> dict[str, Any]:
    log, topic = lake.log, lake.topic

    def read(**options: Any) -> pa.Table:
        return log.read(topic, isolation=isolation, metadata=True, **options)

    found = {
        "all": read(),
        "range": read(start=35, end=200),
        "below": read(start=3, end=40),
        "each": read(start={0: 0, 1: 77, 2: 330}, end={0: 121, 1: 359, 2: 340}),
        "some": read(partitions=[1]),
        "columns": read(columns=["inner", "_offset"]),
        "filter": read(filter="small = 3 and price > 20"),
        "text": read(filter="name like 'name 1%' and _offset > 40", columns=["ok"]),
    }
    for moment in moments:
        found[f"from {moment}"] = read(start=moment)
        found[f"until {moment}"] = read(end=moment)
    return found


@pytest.mark.quick("read_uncommitted", "read_atomic")
@pytest.mark.parametrize("isolation", LEVELS)
def test_read_returns_the_same_rows_and_offsets_as_before_the_trim(
    lake: Lake, isolation: str
) -> None:
    whole = lake.log.read(lake.topic, metadata=True)
    times = sorted(set(whole.column("_timestamp").to_pylist()))
    moments = [times[0], times[len(times) // 3], times[-1], times[-1] + timedelta(days=1)]
    before = all_reads(lake, isolation, moments)
    lake.trim(240, 241, 100)
    after = all_reads(lake, isolation, moments)
    for name, expected in before.items():
        found = after[name]
        if isolation in ("read_uncommitted", "read_replicated"):
            committed = lake.log.read(
                lake.topic, isolation="read_committed", columns=[], metadata=True
            )
            visible = {
                (p, at)
                for p, at in zip(
                    *(committed.column(c).to_pylist() for c in ("_partition", "_offset")),
                    strict=True,
                )
            }
            starts = {0: 240, 1: 241, 2: 100}
            keep = [
                at >= starts[p] or (p, at) in visible
                for p, at in zip(
                    *(expected.column(c).to_pylist() for c in ("_partition", "_offset")),
                    strict=True,
                )
            ]
            expected = expected.filter(pa.array(keep, pa.bool_()))
        assert found.schema == expected.schema, name
        assert found.to_pylist() == expected.to_pylist(), name
    assert before["all"].num_rows > 700


def test_records_in_the_log_need_no_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(lake_tables, "read_rows", lambda *given: opened.append(given) or [])
    lake.trim(240, 241, 100)
    found = lake.log.read(lake.topic, start=250)
    assert found.num_rows == 330
    assert not opened


def test_without_a_lake_removed_records_are_an_error(lake: Lake) -> None:
    lake.trim(240, 241, 100)
    with pytest.raises(OffsetEvicted):
        lake.log.read(lake.topic, start=0, lake="never")
    assert lake.log.read(lake.topic, lake="never").num_rows == 120 + 119 + 260
    with pytest.raises(InvalidOption, match="lake takes"):
        lake.log.read(lake.topic, lake="maybe")


def test_only_the_table_is_read(lake: Lake) -> None:
    whole = lake.log.read(lake.topic, isolation="read_committed", metadata=True)
    later = rows(0, 5, lake.log.describe(lake.topic).schema)
    with lake.log.producer() as producer:
        producer.append(lake.topic, later, partition=0)
    found = lake.log.read(lake.topic, metadata=True, lake="only")
    assert found.to_pylist() == whole.to_pylist()
    lake.trim(365, 241, 100)
    part = lake.log.read(lake.topic, metadata=True, lake="only", start=100, end={1: 150, 2: -2})
    expected = [
        row
        for row in whole.to_pylist()
        if row["_offset"] >= 100
        and (row["_partition"] == 0 or (row["_partition"] == 1 and row["_offset"] < 150))
    ]
    assert part.to_pylist() == expected
    with pytest.raises(OffsetEvicted, match="offset 360"):
        lake.log.read(lake.topic, start=10, isolation="read_committed")
    with pytest.raises(InvalidOption, match="takes one topic"):
        lake.log.read([lake.topic, "other"], isolation="read_atomic", lake="only")


def consumed(lake: Lake, **options: Any) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of a consumer by partition."""
    found: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    with lake.log.consumer(lake.topic, metadata=True, **options) as consumer:
        for batch in consumer.batches(until="latest"):
            for row in batch.to_pylist():
                found[row["_partition"]].append(row)
        assert consumer.position() == {(lake.topic, number): 360 for number in range(3)}
    return found


@pytest.mark.quick("options0-read_committed", "options1-read_atomic")
@pytest.mark.parametrize("isolation", ["read_committed", "read_atomic"])
@pytest.mark.parametrize(
    "options", [{}, {"filter": "small = 3"}, {"start": {0: 7, 1: 300, 2: 100}}]
)
def test_a_consumer_reads_the_same_rows_as_before_the_trim(
    lake: Lake, isolation: str, options: dict[str, Any]
) -> None:
    before = consumed(lake, isolation=isolation, **options)
    lake.trim(240, 241, 360)
    assert consumed(lake, isolation=isolation, **options) == before
    first = consumed(lake, isolation=isolation, on_loss="continue", **options)
    assert first == before


@pytest.mark.full  # the test above has a consumer without a name
def test_a_named_consumer_continues_in_the_table(lake: Lake) -> None:
    expected = consumed(lake, isolation="read_committed")
    options: dict[str, Any] = {"isolation": "read_committed", "name": "n", "metadata": True}
    seen: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    lake.trim(200, 241, 300)
    ended = False
    while not ended:
        with lake.log.consumer(lake.topic, **options) as consumer:
            ended = True
            for number, batch in enumerate(consumer.batches(until="latest")):
                for row in batch.to_pylist():
                    seen[row["_partition"]].append(row)
                consumer.commit()
                if number == 3:
                    ended = False
                    break
    assert seen == expected


def test_a_consumer_continues_after_loss_where_no_table_has_the_records(lake: Lake) -> None:
    with lake.log.producer() as producer:
        producer.append(lake.topic, rows(0, 40, lake.log.describe(lake.topic).schema), partition=0)
    lake.trim(380, 0, 0)
    with (
        lake.log.consumer(lake.topic, start=0, partitions=[0]) as consumer,
        pytest.raises(OffsetEvicted),
    ):
        list(consumer.batches(until="latest"))
    with lake.log.consumer(
        lake.topic, start=0, partitions=[0], on_loss="continue", columns=["n"]
    ) as consumer:
        found = [
            row["n"] for batch in consumer.batches(until="latest") for row in batch.to_pylist()
        ]
    committed = [n for n in range(360) if n // 30 % 4 != 2]
    assert found == [*committed, *range(20, 40)]


def test_records_with_kafkas_columns_are_read_from_the_table(
    log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        for number in range(100):
            headers = [("a", b"1"), ("b", None)][: number % 3]
            producer.send(topic, f"value {number}", key=f"{number % 5}", headers=headers)
    local = LocalLake(log, [topic], tmp_path)
    local.run()

    def reads() -> list[Any]:
        with log.consumer(topic) as consumer:
            records = list(consumer.records(until="latest"))
        with log.consumer(topic, filter="key = '3'") as consumer:
            some = list(consumer.records(until="latest"))
        with log.consumer(topic) as consumer:
            polled = []
            while len(polled) < 100:
                polled += consumer.poll(timeout=5.0, max_records=7)
        whole = log.read(topic, headers=True).to_pylist()
        filtered = log.read(
            topic, filter="offset > 50 and cast(value as string) like '%7'"
        ).to_pylist()
        return [records, some, polled, whole, filtered]

    before = reads()
    log.trim(topic, 60)
    after = reads()
    assert [len(each) for each in after] == [100, 20, 100, 100, 5]
    assert after == before


@pytest.mark.full  # merges: tests/lake/test_reading.py
def test_files_that_were_merged_and_removed_are_read_from_a_later_version(lake: Lake) -> None:
    expected = lake.log.read(lake.topic, isolation="read_committed", metadata=True)
    lake.trim(360, 360, 360)
    lake.log.read(lake.topic, start=0, end=1)  # opens the table
    lake.local.merge(lake.topic)
    found = lake.log.read(lake.topic, isolation="read_committed", metadata=True)
    assert found.to_pylist() == expected.to_pylist()


def test_a_table_that_cannot_be_read_is_an_error(lake: Lake) -> None:
    lake.trim(360, 360, 360)
    for path in (lake.local.folder.root / lake.topic).glob("*.parquet"):
        path.unlink()
    with pytest.raises(LakeIncomplete, match="missing at offset 0"):
        lake.log.read(lake.topic)


@pytest.mark.full  # lookups: tests/lake/test_reading.py
def test_the_table_of_another_topic_is_not_read(lake: Lake) -> None:
    root = lake.local.folder.root
    lake.log.delete_topic(lake.topic)
    lake.log.create_topic(lake.topic, partitions=3, schema=SCHEMA)
    lake.log.drop_lake(lake.local.name)
    lake.log.create_lake(f"again-{lake.topic}", lake.topic, root, check=False)
    block = rows(0, 20, lake.log.describe(lake.topic).schema)
    with lake.log.producer() as producer:
        producer.append(lake.topic, block, partition=0)
    lake.log.trim(lake.topic, {0: 5})
    with pytest.raises(LakeStopped, match="belongs to the topic"):
        lake.log.read(lake.topic)
    assert lake.log.read(lake.topic, lake="never").num_rows == 15
