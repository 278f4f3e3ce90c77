"""A streaming query waits for its only broker, continues with it, and can be stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support import NUMBERS, BrokerProcess, eventually, free_port, numbers


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_writer_lost_brokers.py
def test_query_waits_for_its_broker_and_can_be_stopped_without_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    def add(first: int) -> None:
        with broker.connect() as log, log.producer() as producer:
            producer.append("t", numbers(first, 10)).result()

    def has_copied(count: int) -> bool:
        with broker.connect() as log:
            found = log.read("out", isolation="read_committed")["n"].to_pylist()
        return sorted(found) == list(range(count))

    with BrokerProcess(tmp_path / "log", f"127.0.0.1:{free_port()}") as broker:
        with broker.connect() as log:
            log.create_topic("t", schema=NUMBERS)
            log.create_topic("out", schema=NUMBERS)
        add(0)
        given = {"bootstrap": broker.address, "brokerTimeout": "1h"}
        rows = spark.readStream.format("isolog").options(**given, subscribe="t").load()
        writer = rows.writeStream.format("isolog").options(**given, topic="out")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            eventually(lambda: has_copied(10), 120)
            broker.kill()
            broker.start()
            add(10)
            eventually(lambda: has_copied(20), 120)
            broker.kill()
            eventually(lambda: query.status["message"].startswith("Getting offsets"))
        finally:
            query.stop()
        assert not query.isActive
        assert query.exception() is None


@pytest.mark.full  # without a JVM: tests/datasource/writing/test_writer_lost_brokers.py
def test_a_query_stops_in_a_batch_whose_broker_hangs_or_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise `stop` raises an error after the session's `stopTimeout` of 30 seconds."""
    folder = tmp_path / "in"
    folder.mkdir()

    def add(number: int) -> None:
        (tmp_path / "new").write_text(f"{number}\n")
        (tmp_path / "new").rename(folder / f"{number}.txt")

    def start() -> StreamingQuery:
        rows = spark.readStream.text(str(folder)).selectExpr("CAST(value AS bigint) AS n")
        writer = rows.writeStream.format("isolog").option("bootstrap", broker.address)
        writer = writer.options(topic="out", brokerTimeout="1h", transactionTimeout="5s")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def has(count: int) -> bool:
        with broker.connect() as log:
            found = log.read("out", isolation="read_committed")["n"].to_pylist()
        return sorted(found) == list(range(count))

    with BrokerProcess(tmp_path / "log", f"127.0.0.1:{free_port()}") as broker:
        with broker.connect() as log:
            log.create_topic("out", schema=NUMBERS)
        add(0)
        for count, (fault, repair) in enumerate(
            [(broker.pause, broker.resume), (broker.kill, broker.start)], 1
        ):
            query = start()
            try:
                eventually(lambda count=count: has(count), 120)
                eventually(lambda query=query: not query.status["isTriggerActive"], 60)
                fault()
                add(count)
                eventually(lambda query=query: query.status["message"] == "Processing new data", 60)
            finally:
                query.stop()
            assert not query.isActive
            assert query.exception() is None
            repair()
        query = start()
        eventually(lambda: has(3), 120)
        query.stop()
