"""Dead letters of a streaming query: each bad row once, although tasks and queries rerun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import from_json, struct, to_json

import isolog
from spark_stream.datasource.spark.types import to_arrow
from spark_stream.datasource.writing.bad_rows import DEAD_LETTERS
from tests.spark.conftest import Queries, ended
from tests.spark.copies import faulty, kill_session
from tests.spark.releases import JSON_HAS_TIME
from tests.spark.sink_driver import FILES, ROWS_PER_BATCH
from tests.spark.test_stream_source import wait_until

STRICT = pa.schema([pa.field("n", pa.int64(), nullable=False)])
ROWS = 3 * ROWS_PER_BATCH
GOOD = [number for number in range(ROWS) if number % 5]
BAD = ROWS - len(GOOD)


@pytest.fixture
def partly_bad(tmp_path: Path) -> str:
    """Files for three micro-batches, in which each fifth row is null."""
    directory = tmp_path / "source"
    directory.mkdir()
    size = ROWS // FILES
    for number in range(FILES):
        rows = range(number * size, (number + 1) * size)
        column = pa.array([row if row % 5 else None for row in rows], pa.int64())
        file = directory / f"{number}.parquet"
        pq.write_table(pa.table({"n": column}), file)
        os.utime(file, (number, number))  # in this order
    return str(directory)


@pytest.fixture
def dead(log: isolog.Log, topic: str) -> str:
    log.create_topic(topic, 2, schema=STRICT)
    log.create_topic(f"{topic}-dead", 2, schema=DEAD_LETTERS)
    return f"{topic}-dead"


def letters(log: isolog.Log, name: str, isolation: str = "read_committed") -> list[dict[str, Any]]:
    return log.read(name, isolation=isolation).to_pylist()


def assert_each_row_once(log: isolog.Log, topic: str, dead: str) -> None:
    found = log.read(topic, isolation="read_committed")["n"].to_pylist()
    assert sorted(found) == GOOD
    counts = Counter((each["batch"], each["reason"]) for each in letters(log, dead))
    assert counts == {(batch, "NULL_VALUE"): BAD // 3 for batch in range(3)}


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_bad_rows_dead_letters.py
def test_restarted_query_writes_no_duplicate_letter(
    queries: Queries, log: isolog.Log, topic: str, dead: str, partly_bad: str, tmp_path: Path
) -> None:
    """The second micro-batch is committed, but not in Spark's checkpoint, so Spark replays it."""

    def run(fault: str) -> str | None:
        marks = tmp_path / "marks"
        marks.mkdir(exist_ok=True)
        query = faulty(queries, partly_bad, topic, marks, fault)
        return ended(query.options(onBadRecord="deadLetter", deadLetterTopic=dead).start())

    assert "the reply is lost" in str(run("commit's reply is lost"))
    assert len(letters(log, dead)) == 2 * BAD // 3
    assert run("commit's reply is lost") is None
    assert_each_row_once(log, topic, dead)
    assert {each["task"] for each in letters(log, dead)} == {0, 1}
    # The JSON of the letters is a DataFrame again.
    again = queries.read(dead, isolation="read_committed").selectExpr(
        "from_json(row, 'n bigint').n as n", "topic", "truncated"
    )
    assert {tuple(row) for row in again.collect()} == {(None, topic, False)}


def test_a_batch_write_with_a_bad_row_of_each_kind(
    queries: Queries, log: isolog.Log, topic: str
) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("text", pa.string()),
            ("at", pa.timestamp("us")),
        ]
    )
    log.create_topic(topic, schema=schema)
    log.alter_topic(topic, config={"max.record.bytes": 40})
    frame = queries.spark.sql(
        """select * from values
            (1L, 'fits', date'2026-01-31'),
            (null, 'no id', date'2026-01-31'),
            (3L, string(x'ff'), date'2026-01-31'),
            (4L, 'this is long, more than 40 bytes', date'2026-01-31'),
            (5L, 'far', date_add(date'2026-01-31', 200000000)) as rows(id, text, at)"""
    )
    options = {"onBadRecord": "deadLetter", "deadLetterTopic": f"{topic}-dead", "createTopic": True}
    queries.write(frame, topic, **options)
    assert log.read(topic, isolation="read_committed")["id"].to_pylist() == [1]
    found = {json.loads(each["row"])["text"]: each for each in letters(log, f"{topic}-dead")}
    assert {text: each["reason"] for text, each in found.items()} == {
        "no id": "NULL_VALUE",
        "\ufffd": "INVALID_VALUE",
        "this is long, more than 40 bytes": "RECORD_TOO_LARGE",
        "far": "INVALID_VALUE",
    }
    assert {each["batch"] for each in found.values()} == {None}


EVERY_TYPE = """
select {0} as n, {0} % 2 = 0 as boolean_, cast(-{0} as byte) as byte_,
  cast(-{0} as short) as short_, cast({0} as int) as int_, {2} * 9223372036854775807 as long_,
  cast({0} / 3 as float) as float_, {3} as double_,
  array(double('NaN'), null, -0.0d) as doubles_,
  cast({2} * 1.5 as decimal(10, 2)) as decimal_,
  cast({2} * 12345678901234567890.123456789012345678 as decimal(38, 18)) as wide_decimal_,
  concat('grüße "\\\\" \\n ', {0}) as string_, unhex('00ff0a') as binary_,
  date'{1}-02-28' as date_, {5}
  timestamp'{1}-02-28 01:02:03.123456' as timestamp_,
  timestamp_ntz'{1}-02-28 01:02:03.000001' as timestamp_ntz_,
  {4} as interval_, array({4}, null) as intervals_,
  map('a "key"', named_struct('i', {4}), 'none', null) as map_,
  named_struct('a', cast({0} as int), 'b', array(named_struct('c', unhex('ff')))) as struct_,
  cast(array() as array<string>) as empty_, null as void_
"""
TIME = "time'23:59:59.123456' as time_,"
VALUES = [
    (0, "2026", "1", "double('Infinity')", "interval '1 02:03:04.000005' day to second"),
    (1, "1500", "-1", "double('-Infinity')", "interval '-1 02:03:04.5' day to second"),
    (2, "0001", "1", "1e-300d", "make_dt_interval(0, 0, 0, -0.000001)"),
    (3, "-4000", "-1", "double('NaN')", "make_dt_interval(106751991, 4, 0, 54.775807)"),
    (4, "+12500", "1", "0.1d", "make_dt_interval(-106751991, -4, 0, -54.775808)"),
]


@pytest.fixture
def time_type(spark: SparkSession) -> Iterator[None]:
    """Spark's type time, which has to be enabled."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.rule(
    "a dead letter's row is read by Spark's from_json, whatever its types",
    "datasource/writing/bad_rows.py",
)
def test_from_json_reads_every_type_of_a_dead_letter(
    queries: Queries, log: isolog.Log, topic: str, time_type: None
) -> None:
    time = TIME if JSON_HAS_TIME else ""
    frame = queries.spark.sql(" union all ".join(EVERY_TYPE.format(*each, time) for each in VALUES))
    nulls = [f"if(n % 2 = 0, null, {name}) as {name}" for name in frame.columns if name != "n"]
    frame = frame.union(frame.selectExpr("n + 100 as n", *nulls)).coalesce(1)
    bad = frame.selectExpr("*", "cast(null as int) as required")
    schema = to_arrow(frame.schema).append(pa.field("required", pa.int32(), nullable=False))
    log.create_topic(topic, schema=schema)
    options = {"onBadRecord": "deadLetter", "deadLetterTopic": f"{topic}-dead", "createTopic": True}
    queries.write(bad, topic, **options)
    found = queries.read(f"{topic}-dead").select("row")

    def shown(rows: DataFrame) -> list[Any]:
        values = rows.selectExpr("n", "cast(struct(*) as string)", "hex(binary_)")
        return sorted(tuple(row) for row in values.collect())

    read = found.select(from_json("row", frame.schema).alias("found")).select("found.*")
    assert len(shown(frame)) == 2 * len(VALUES)
    assert shown(read) == shown(frame)
    # The text is that of to_json, which cuts timestamps to milliseconds.
    expected = frame.select(to_json(struct("*"), {"ignoreNullFields": "false"})).collect()
    for (mine,), (sparks,) in zip(found.collect(), expected, strict=True):
        row, other = json.loads(mine), json.loads(sparks)
        for name in ("timestamp_", "timestamp_ntz_"):
            assert (row.pop(name) is None) == (other.pop(name) is None)
        assert row.pop("required") is None
        assert row == other


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_bad_rows_dead_letters.py
def test_retried_task_writes_no_duplicate_letter(
    queries: Queries, log: isolog.Log, topic: str, dead: str, partly_bad: str, tmp_path: Path
) -> None:
    """A task is killed, and its second attempt fails, after both have written letters."""
    job = tmp_path / "job.json"
    query = {
        "to": topic,
        "fault": "task killed then task fails",
        "marks": str(tmp_path),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {"onBadRecord": "deadLetter", "deadLetterTopic": dead},
    }
    job.write_text(json.dumps({"path": queries.path, "source": partly_bad, "queries": [query]}))
    with (tmp_path / "driver.log").open("w") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:

        def has_ended() -> bool:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()
            return (tmp_path / "ended").exists()

        wait_until(has_ended, "the query has ended", 200)
    finally:
        kill_session(driver)
    assert (tmp_path / "ended").read_text() == ""
    assert_each_row_once(log, topic, dead)
    assert len(letters(log, dead, "read_uncommitted")) > BAD  # the rows of failed attempts
