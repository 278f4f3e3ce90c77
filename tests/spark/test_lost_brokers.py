"""How long a streaming query waits for its only broker, and that it can be stopped meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import ended
from tests.support import NUMBERS, BrokerProcess, eventually, free_port, numbers


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "log", f"127.0.0.1:{free_port()}") as found:
        with found.connect() as log:
            log.create_topic("t", schema=NUMBERS)
            log.create_topic("out", schema=NUMBERS)
        yield found


def add(broker: BrokerProcess, first: int) -> None:
    with broker.connect() as log, log.producer() as producer:
        producer.append("t", numbers(first, 10)).result()


def copy(
    spark: SparkSession, broker: BrokerProcess, checkpoint: Path, timeout: str | None = None
) -> StreamingQuery:
    """Start a copy from ``t`` to ``out``, and wait for its first ten records."""
    given = {"bootstrap": broker.address} | ({} if timeout is None else {"brokerTimeout": timeout})
    add(broker, 0)
    reader = spark.readStream.format("isolog").options(**given).option("subscribe", "t")
    writer = reader.load().writeStream.format("isolog").options(**given).option("topic", "out")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    with broker.connect() as log:
        eventually(lambda: log.read("out").num_rows == 10)
    return query


def test_a_query_goes_on_when_its_broker_is_back(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    query = copy(spark, broker, tmp_path / "checkpoint")
    try:
        broker.kill()
        broker.start()
        add(broker, 10)
        with broker.connect() as log:
            eventually(lambda: log.read("out", isolation="read_committed").num_rows >= 20)
            assert query.isActive
            found = log.read("out", isolation="read_committed")["n"].to_pylist()
        assert sorted(found) == list(range(20))
    finally:
        query.stop()


def test_a_query_that_may_wait_for_a_moment_ends_with_its_broker(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    query = copy(spark, broker, tmp_path / "checkpoint", "3s")
    broker.kill()
    begun = time.monotonic()
    assert "BROKER_UNAVAILABLE" in str(ended(query))
    assert time.monotonic() - begun < 100  # not the default's two minutes


def test_a_query_that_waits_for_its_broker_can_be_stopped(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    query = copy(spark, broker, tmp_path / "checkpoint", "1h")
    eventually(lambda: query.lastProgress)  # its batch is committed
    broker.kill()
    eventually(lambda: query.status["message"].startswith("Getting offsets"))
    query.stop()
    assert not query.isActive
    assert query.exception() is None
