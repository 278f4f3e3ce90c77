"""A streaming query between two topics continues while the leader of either is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers import await_heir, brokers_on
from tests.support import eventually, numbers


@pytest.mark.parametrize(
    "lost",
    [
        ("t", "out"),
        pytest.param(("t",), marks=pytest.mark.full),
        pytest.param(("out",), marks=pytest.mark.full),
    ],
    ids="-".join,
)
def test_query_continues_when_the_leader_of_its_source_or_sink_is_replaced(
    spark: SparkSession, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """One of the two leaders, or both, are killed. Each record is written once."""
    topics = {name: "ab" if name in lost else "b" for name in ("t", "out")}
    with brokers_on(tmp_path, **topics) as (first, second), second.connect(timeout=30) as log:
        with log.producer(isolation="read_committed") as producer:
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
            eventually(lambda: log.read("out").num_rows == 100, 240)
            first.kill()
            for name in lost:
                await_heir(name, second)
            with log.producer(isolation="read_committed") as producer:
                producer.append("t", numbers(100, 100), 0)
            committed = {"isolation": "read_committed"}
            eventually(lambda: log.read("out", **committed).num_rows == 200, 240)
            assert query.isActive
            assert sorted(log.read("out")["n"].to_pylist()) == list(range(200))
        finally:
            query.stop()
