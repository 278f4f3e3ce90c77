"""Queries whose tasks run in the rack of a follower."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isolog.testing import LocalCluster
from tests.support import NUMBERS, eventually
from tests.system.replication.clusters import CONF, append_replicated, await_in_sync


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_reader_near.py
@pytest.mark.chaos
@pytest.mark.parametrize(
    "isolation",
    [
        "read_committed",
        pytest.param("read_replicated", marks=pytest.mark.full),
        pytest.param("read_atomic", marks=pytest.mark.full),
    ],
)
def test_batch_and_stream_read_in_their_rack_and_continue_without_its_broker(
    spark: SparkSession, tmp_path: Path, isolation: str
) -> None:
    """tests/datasource/reading/test_reader_near.py checks which replica is read."""
    with (
        LocalCluster(2, conf=CONF | {"mapped_reads": False}, racks=["a", "b"]) as cluster,
        cluster.connect() as log,
    ):
        log.create_topic("t", schema=NUMBERS, assignment=[["1", "2"], ["2", "1"]])
        for partition in range(2):
            append_replicated(log, "t", 1_000 * partition, 1_000, partition)
        await_in_sync(log, "t", 2)
        options = {
            "bootstrap": cluster.bootstrap,
            "subscribe": "t",
            "isolation": isolation,
            "rack": "b",
        }
        found = spark.read.format("isolog").options(**options).load()
        assert sorted(row.n for row in found.collect()) == list(range(2_000))
        query = (
            spark.readStream.format("isolog")
            .options(**options)
            .load()
            .writeStream.format("memory")
            .queryName(f"near_{isolation}")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:

            def count() -> int:
                return spark.table(f"near_{isolation}").distinct().count()

            eventually(lambda: count() == 2_000)
            cluster.kill(2)
            append_replicated(log, "t", 2_000, 1_000)
            eventually(lambda: count() == 3_000)
            assert spark.table(f"near_{isolation}").count() == 3_000
        finally:
            query.stop()
