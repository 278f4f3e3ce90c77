"""The jobs of ``examples/``, each on a small log, with their results."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

import isolog
from tests.conftest import ROOT
from tests.spark.releases import PASSES_LIMITS
from tests.spark.standalone import submit

EXAMPLES = ROOT / "examples"
JOBS = (
    "ingest_files",
    "count_by_window",
    "join_topics",
    "backfill_to_parquet",
    "sort_out_bad_records",
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DDL = "carrier string, origin string, delay int, moment timestamp"
PYTHONS = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
MOMENT = pa.timestamp("us", "UTC")
FLIGHTS = pa.schema(
    [("carrier", pa.string()), ("origin", pa.string()), ("delay", pa.int32()), ("moment", MOMENT)]
)


@pytest.fixture(autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    """Restore the session's zone, because a job may set it and all tests share the session."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


def run(job: str, place: Path | None, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the script as spark-submit does, in this process and its Spark session."""
    where = () if place is None else ("--path", place)
    words = [f"{job}.py", *(str(each) for each in (*where, *arguments))]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLES / words[0]), run_name="__main__")


def flight(minute: int, delay: int, origin: str = "JFK") -> dict[str, Any]:
    moment = NOON + timedelta(minutes=minute)
    return {"carrier": "UA", "origin": origin, "delay": delay, "moment": moment}


def rows(log: isolog.Log, topic: str) -> list[dict[str, Any]]:
    return log.read(topic, isolation="read_committed").to_pylist()


def add(log: isolog.Log, topic: str, schema: pa.Schema, values: list[dict[str, Any]]) -> None:
    with log.producer() as producer:
        producer.append(topic, pa.RecordBatch.from_pylist(values, schema))


@pytest.mark.parametrize("job", JOBS)
def test_job_is_short_and_has_its_command_line(job: str) -> None:
    text = (EXAMPLES / f"{job}.py").read_text()
    assert f"spark-submit examples/{job}.py --bootstrap " in text.split('"""')[1]
    assert len(text.splitlines()) < 60
    assert f"examples/{job}.py" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("submits", [False, pytest.param(True, marks=pytest.mark.full)])
def test_files_become_records_of_a_typed_topic_once(
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    submits: bool,
) -> None:
    """Also through spark-submit, as users run it. A second run reads one file more."""
    landing, checkpoint = tmp_path / "landing", tmp_path / "checkpoint"
    landing.mkdir()
    arguments = (landing, topic, "--schema", DDL, "--checkpoint", checkpoint)

    def land(day: int) -> None:
        line = {"carrier": "UA", "origin": "JFK", "delay": day, "moment": "2026-01-31T12:00:00Z"}
        (landing / f"day-{day}.json").write_text(json.dumps(line) + "\n")

    land(1)
    if submits:
        job = (EXAMPLES / "ingest_files.py", "--path", shared_path, *arguments)
        submit("local[1]", tmp_path, *job, **PYTHONS)
    else:
        run("ingest_files", shared_path, *arguments, monkeypatch=monkeypatch)
    land(2)
    run("ingest_files", shared_path, *arguments, monkeypatch=monkeypatch)
    assert sorted(rows(log, topic), key=lambda row: row["delay"]) == [flight(0, 1), flight(0, 2)]
    assert len(log.describe(topic).partitions) == 4


@pytest.mark.full
def test_late_flights_are_counted_by_window(
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    log.create_topic(topic, schema=FLIGHTS)
    add(
        log,
        topic,
        FLIGHTS,
        [flight(0, 20), flight(30, 40), flight(40, 15), flight(50, 60, "LGA"), flight(180, 99)],
    )
    arguments = (topic, f"{topic}-counts", "--checkpoint", tmp_path)
    run("count_by_window", shared_path, *arguments, monkeypatch=monkeypatch)
    if not PASSES_LIMITS:  # without a target a run has no micro-batch without records
        add(log, topic, FLIGHTS, [flight(200, 99)])
        run("count_by_window", shared_path, *arguments, monkeypatch=monkeypatch)
    counts = sorted(rows(log, f"{topic}-counts"), key=lambda row: str(row["origin"]))
    expected = [(NOON, "JFK", 2, 30.0), (NOON, "LGA", 1, 60.0)]
    assert [tuple(row.values()) for row in counts] == expected


@pytest.mark.full
def test_orders_find_their_payments(
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    orders = pa.schema(
        [
            ("order_id", pa.int64()),
            ("customer", pa.string()),
            ("amount", pa.float64()),
            ("moment", MOMENT),
        ]
    )
    payments = pa.schema([("order_id", pa.int64()), ("paid", pa.float64()), ("moment", MOMENT)])
    log.create_topic(f"{topic}-o", schema=orders)
    log.create_topic(f"{topic}-p", schema=payments)
    arguments = (f"{topic}-o", f"{topic}-p", f"{topic}-paid", "--checkpoint", tmp_path)

    def order(number: int) -> dict[str, Any]:
        return {"order_id": number, "customer": "Ann", "amount": 9.5, "moment": NOON}

    def payment(number: int, minutes: int) -> dict[str, Any]:
        moment = NOON + timedelta(minutes=minutes)
        return {"order_id": number, "paid": 9.5, "moment": moment}

    def paid() -> list[int]:
        return sorted(row["order_id"] for row in rows(log, f"{topic}-paid"))

    with log.producer(transactional_id=f"{topic}-shop") as producer:
        with producer.transaction():
            producer.append(f"{topic}-o", pa.RecordBatch.from_pylist([order(1), order(2)], orders))
            producer.append(f"{topic}-p", pa.RecordBatch.from_pylist([payment(1, 1)], payments))
        producer.begin_transaction()
        producer.append(f"{topic}-p", pa.RecordBatch.from_pylist([payment(2, 2)], payments))
        producer.abort_transaction()
    run("join_topics", shared_path, *arguments, monkeypatch=monkeypatch)
    assert paid() == [1]
    add(log, f"{topic}-p", payments, [payment(2, 30)])
    run("join_topics", shared_path, *arguments, monkeypatch=monkeypatch)
    assert paid() == [1, 2]


@pytest.mark.full  # ranges of time: test_times.py
def test_a_range_of_time_goes_to_parquet_and_may_be_repeated(
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    log.create_topic(topic, schema=FLIGHTS)
    for delay in range(3):
        add(log, topic, FLIGHTS, [flight(delay, delay)])
    times = log.read(topic, columns=["_timestamp"])["_timestamp"].to_pylist()
    ends = ("--start", times[1].isoformat(), "--end", times[2].isoformat(), "--tasks", 2)
    for _ in range(2):
        folder = tmp_path / "archive"
        run("backfill_to_parquet", shared_path, topic, folder, *ends, monkeypatch=monkeypatch)
    found = parquet.read_table(folder).to_pylist()
    assert [row["delay"] for row in found] == [1]
    assert str(found[0]["day"]) == str(date.fromisoformat(times[1].date().isoformat()))


@pytest.mark.full
def test_bad_records_become_dead_letters(
    shared_path: Path,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        text = {"carrier": "UA", "origin": "JFK", "delay": 5, "moment": "2026-01-31T12:00:00Z"}
        producer.send(topic, json.dumps(text).encode())
        producer.send(topic, b"{broken", key=b"k")
        producer.send(topic, json.dumps(text | {"delay": "late"}).encode())
        producer.send(topic, None, key=b"tombstone")
    good, bad = f"{topic}-good", f"{topic}-bad"
    texts = [pa.field(name, pa.string()) for name in ("corrupt", "origin")]
    columns = [pa.field("carrier", pa.string(), False), pa.field("delay", pa.int32(), False)]
    log.create_topic(good, schema=pa.schema([*columns, *texts]))
    for _ in range(2):
        run(
            "sort_out_bad_records",
            shared_path,
            *(topic, good, bad, "--schema", "carrier string, delay int", "--checkpoint", tmp_path),
            monkeypatch=monkeypatch,
        )
    (fits,) = rows(log, good)
    assert (fits["carrier"], fits["delay"], fits["corrupt"]) == ("UA", 5, None)
    assert fits["origin"] == f"{topic}/0/0"
    letters = rows(log, bad)
    assert [each["reason"] for each in letters] == ["NULL_VALUE"] * 3
    found = {each["origin"]: each for each in (json.loads(each["row"]) for each in letters)}
    assert found[f"{topic}/0/1"]["corrupt"] == "{broken"
    assert json.loads(found[f"{topic}/0/2"]["corrupt"])["delay"] == "late"
    assert found[f"{topic}/0/3"]["corrupt"] is None
