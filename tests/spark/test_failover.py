"""A streaming query from one topic to another goes on while the leader of either is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.failover import hand_over, two_brokers
from tests.support import BrokerProcess, eventually, numbers


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """A leads ``t`` and ``out``, B leads ``b``."""
    with two_brokers(tmp_path, "t", "out") as found:
        yield found


@pytest.mark.parametrize("lost", ["t", "out"])
def test_a_query_goes_on_when_the_leader_of_its_source_or_its_sink_is_replaced(
    spark: SparkSession, pair: tuple[BrokerProcess, BrokerProcess], tmp_path: Path, lost: str
) -> None:
    """Whichever of the two is lost, each record is there once in the end."""
    first, second = pair
    with second.connect(timeout=30) as log:
        with log.producer() as producer:
            producer.append("t", numbers(0, 100), 0)
        query = (
            spark.readStream.format("isolog")
            .option("bootstrap", f"{second.address},{first.address}")
            .option("subscribe", "t")
            .load()
            .writeStream.format("isolog")
            .option("bootstrap", f"{first.address},{second.address}")
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            eventually(lambda: log.read("out").num_rows == 100, 60)
            first.kill()
            kept = "out" if lost == "t" else "t"
            hand_over(lost, first, second)
            first.restart()  # it leads the other topic still
            with log.producer() as producer:
                producer.append("t", numbers(100, 100), 0)
            committed = {"isolation": "read_committed"}
            eventually(lambda: log.read("out", **committed).num_rows == 200, 60)
            assert query.isActive
            assert sorted(log.read("out")["n"].to_pylist()) == list(range(200))
            assert (
                log.describe(kept).partitions[0].leader != log.describe(lost).partitions[0].leader
            )
        finally:
            query.stop()
