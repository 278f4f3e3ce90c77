"""The queries of the flights demo: two streaming jobs, and the batch queries after them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flights_data
import flights_report
from flights_brokers import Brokers
from flights_mishaps import Stumble
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

TOPIC = "flights"
PARTITIONS = 4
FILES_A_BATCH = 2


# -- the queries ----------------------------------------------------------------------------------


def start_writing(
    spark: SparkSession, brokers: Brokers, files: Path, checkpoint: Path, stumble: Stumble
) -> StreamingQuery:
    """Files to topic, each micro-batch exactly once. The topic gets the DataFrame's columns."""
    flights = (
        spark.readStream.schema(spark.read.parquet(str(files)).schema)
        .option("maxFilesPerTrigger", FILES_A_BATCH)
        .parquet(str(files))
    )
    flights = flights.mapInArrow(stumble, flights.schema)
    return (
        flights.writeStream.format("isolog")
        .options(**brokers.place, topic=TOPIC, createTopic=True)
        .options(partitions=PARTITIONS, replicationFactor=brokers.replicas)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def start_reading(
    spark: SparkSession, place: dict[str, str], isolation: str, start: str, checkpoint: Path
) -> StreamingQuery:
    """Topic to a table in memory: the delays per carrier and month so far."""
    airlines = spark.createDataFrame(flights_data.airlines())
    flights = (
        spark.readStream.format("isolog")
        .options(**place, subscribe=TOPIC, isolation=isolation, startingOffsets=start)
        .load()
    )
    delays = (
        flights.join(airlines, "carrier", "left")
        .groupBy("carrier", "name", "month")
        .agg(
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.sum("dep_delay").alias("delay"),
        )
    )
    return (
        delays.writeStream.format("memory")
        .queryName("delays")
        .outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def read_again(
    spark: SparkSession, place: dict[str, str], isolation: str, start: str, end: str
) -> DataFrame:
    """The same records as a batch: departure delays by the rain of the hour."""
    weather = spark.createDataFrame(flights_data.weather())
    flights = (
        spark.read.format("isolog")
        .options(**place, subscribe=TOPIC, isolation=isolation)
        .options(startingOffsets=start, endingOffsets=end)
        .load()
    )
    rain = (
        f.when(f.col("precip").isNull(), flights_report.RAIN[0])
        .when(f.col("precip") == 0, flights_report.RAIN[1])
        .when(f.col("precip") <= 0.05, flights_report.RAIN[2])
        .when(f.col("precip") <= 0.25, flights_report.RAIN[3])
        .otherwise(flights_report.RAIN[4])
    )
    return (
        flights.join(weather, ["origin", "time_hour"], "left")
        .groupBy(rain.alias("rain"))
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("delay"))
    )


def count_at(
    spark: SparkSession, place: dict[str, str], isolation: str, start: str, end: str
) -> int:
    """The number of records that a query under this level sees. It reads one column."""
    return (
        spark.read.format("isolog")
        .schema("month int")
        .options(**place, subscribe=TOPIC, isolation=isolation)
        .options(startingOffsets=start, endingOffsets=end)
        .load()
        .count()
    )


# -- watching them --------------------------------------------------------------------------------


@dataclass
class Job:
    """A streaming query, and the reports of its micro-batches so far."""

    query: StreamingQuery
    rows: dict[int, int] = field(default_factory=dict)
    end_offset: dict[str, Any] = field(default_factory=dict)

    def news(self) -> Iterator[tuple[int, int, float]]:
        """Yield new micro-batches: number, rows, seconds. Raise the error of a failed query.

        A micro-batch without rows skipped records that its level does not show.
        """
        ended = not self.query.isActive
        for progress in self.query.recentProgress:
            batch, source = progress["batchId"], progress["sources"][0]
            idle = source["startOffset"] == source["endOffset"]
            if not idle and batch not in self.rows:
                self.rows[batch] = progress["numInputRows"]
                self.end_offset = source["endOffset"]
                seconds = progress["durationMs"]["triggerExecution"] / 1000
                yield batch, self.rows[batch], seconds
        if ended:
            self.query.awaitTermination()

    @property
    def total(self) -> int:
        return sum(self.rows.values())


def offsets_of(streaming_offset: str | dict[str, Any]) -> dict[int, int]:
    """Partition → offset, from a streaming offset as Spark logs it. Empty before the first one."""
    found = streaming_offset
    if isinstance(found, str):
        found = ast.literal_eval(found)  # PySpark 4.0 and 4.1 write a dict of Python, not JSON
    partitions = found.get(TOPIC, {}).get("partitions", {})
    return {int(number): at["offset"] for number, at in partitions.items()}


def as_option(offsets: dict[int, int]) -> str:
    """Offsets in the form of the options startingOffsets and endingOffsets."""
    return json.dumps({TOPIC: offsets}) if offsets else "earliest"
