"""The flights of 2013 into a log and out again, by two streaming jobs at the same time.

    SPARK_CONF_DIR=conf spark-submit examples/flights_demo.py

The first job streams flights from Parquet files into the typed topic ``flights``; the second reads
the topic under an isolation level, joins the airlines, and keeps delays per carrier and month.
Then a batch query reads the same records again and joins the weather. Every count must agree to
the record, or the exit code is 1.

Without ``--bootstrap`` the log is a directory of the output, whose broker is started when the demo
first needs it. Each run starts afresh there: it stops a broker that an interrupted run left,
removes what that run wrote, and stops its own broker at the end. A broker named by ``--bootstrap``
keeps its topic: a run appends to it, and reads what it appended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flights_data
import flights_report
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import spark_stream as isolog

TOPIC = "flights"
PARTITIONS = 4
LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")
POLL_S = 0.1


# -- the jobs -------------------------------------------------------------------------------------


def start_writing(spark: SparkSession, place: dict[str, str], output: Output) -> StreamingQuery:
    """Files to topic. The topic gets the columns and types of the DataFrame."""
    files = str(output.input)
    flights = (
        spark.readStream.schema(spark.read.parquet(files).schema)
        .option("maxFilesPerTrigger", 2)
        .parquet(files)
    )
    return (
        flights.writeStream.format("isolog")
        .options(**place, topic=TOPIC, createTopic=True, partitions=PARTITIONS)
        .option("checkpointLocation", output.checkpoint("write"))
        .trigger(availableNow=True)
        .start()
    )


def start_reading(
    spark: SparkSession, place: dict[str, str], output: Output, isolation: str, start: str
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
        .option("checkpointLocation", output.checkpoint("read"))
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


# -- watching them --------------------------------------------------------------------------------


@dataclass
class Job:
    """A streaming query, and what its micro-batches have reported so far."""

    query: StreamingQuery
    rows: dict[int, int] = field(default_factory=dict)
    end_offset: dict[str, Any] = field(default_factory=dict)

    def news(self) -> Iterator[tuple[int, int, float]]:
        """New micro-batches: number, rows, seconds. Raises what ended the query, if it failed."""
        if not self.query.isActive:
            self.query.awaitTermination()
        for progress in self.query.recentProgress:
            batch, rows = progress["batchId"], progress["numInputRows"]
            if rows and batch not in self.rows:
                self.rows[batch] = rows
                self.end_offset = progress["sources"][0]["endOffset"]
                yield batch, rows, progress["durationMs"]["triggerExecution"] / 1000

    @property
    def total(self) -> int:
        return sum(self.rows.values())


def offsets_of(streaming_offset: str | dict[str, Any]) -> dict[int, int]:
    """Partition → offset, of a streaming offset as Spark logs it; empty before the first one."""
    found = json.loads(streaming_offset) if isinstance(streaming_offset, str) else streaming_offset
    partitions = found.get(TOPIC, {}).get("partitions", {})
    return {int(number): at["offset"] for number, at in partitions.items()}


def log_ends(log: isolog.Log) -> dict[int, int]:
    """Partition → log end offset; empty while there is no such topic."""
    try:
        return {each.partition: each.log_end_offset for each in log.describe(TOPIC).partitions}
    except isolog.errors.UnknownTopic:
        return {}


def as_option(offsets: dict[int, int]) -> str:
    """Offsets as the options startingOffsets and endingOffsets take them."""
    return json.dumps({TOPIC: offsets}) if offsets else "earliest"


# -- a run ----------------------------------------------------------------------------------------


def run(spark: SparkSession, log: isolog.Log, asked: argparse.Namespace, output: Output) -> bool:
    """The whole demo; whether all counts agree."""
    console = flights_report.console
    place = place_of(asked, output)
    flights = flights_data.flights(asked.months)
    flights_data.write_weeks(flights, output.input)
    before = log_ends(log)

    with flights_report.Progress(flights.num_rows, asked.isolation) as shown:
        writing = Job(start_writing(spark, place, output))
        while not log_ends(log) and writing.query.isActive:  # the sink makes the topic
            time.sleep(POLL_S)
        reading = Job(start_reading(spark, place, output, asked.isolation, as_option(before)))
        while True:
            done = not writing.query.isActive
            for news in writing.news():
                shown.wrote(*news, writing.total)
            ends = log_ends(log)
            added = sum(ends.values()) - sum(before.values())
            for news in reading.news():
                shown.read(*news, reading.total, added - reading.total)
            backlog = added - reading.total
            shown.behind(backlog)
            if done and backlog <= 0:
                break
            time.sleep(POLL_S)
        reading.query.stop()

    delays = spark.table("delays").collect()
    rain = read_again(
        spark, place, asked.isolation, as_option(before), as_option(log_ends(log))
    ).collect()
    flights_report.show_delays(delays)
    flights_report.show_rain(rain)
    flights_report.draw(delays, rain, output.chart)

    spread = {number: end - before.get(number, 0) for number, end in ends.items()}
    agree = flights_report.show_counts(
        asked.isolation,
        flights=flights.num_rows,
        wrote=writing.total,
        stored=spread,
        read=reading.total,
        table=sum(row.flights for row in delays),
        batch=sum(row.flights for row in rain),
    )
    console.print("\nThe reading job's last streaming offset is where it stands in the log:")
    console.print(f"  {json.dumps(offsets_of(reading.end_offset))}", soft_wrap=True)
    return agree


@dataclass(frozen=True)
class Output:
    """The folder that a run fills. Only what an earlier run left there is ever removed."""

    path: Path

    @property
    def input(self) -> Path:
        return self.path / "input"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def chart(self) -> Path:
        return self.path / "delays.png"

    def checkpoint(self, job: str) -> str:
        return str(self.path / "checkpoints" / job)

    def cleared(self) -> None:
        """Makes the folder, or removes what an earlier run left in it; refuses any other folder."""
        mark = self.path / ".isolog-demo"
        if self.path.exists() and any(self.path.iterdir()) and not mark.exists():
            raise SystemExit(f"{self.path} holds other files: give an empty or new --output")
        self.path.mkdir(parents=True, exist_ok=True)
        mark.touch()
        self.stop_broker()
        for left in (self.input, self.log, self.path / "checkpoints"):
            shutil.rmtree(left, ignore_errors=True)
        self.chart.unlink(missing_ok=True)

    def stop_broker(self) -> bool:
        """Ends the broker of the log directory; whether one ran."""
        if not self.log.exists():
            return False
        command = [sys.executable, "-m", "spark_stream.cli", "broker", "stop", "--dir", self.log]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def place_of(asked: argparse.Namespace, output: Output) -> dict[str, str]:
    """The option that says where the log is."""
    return {"bootstrap": asked.bootstrap} if asked.bootstrap else {"path": str(output.log)}


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    spark = SparkSession.builder.appName("isolog: flights of 2013").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")  # its warnings would come between the lines of progress
    try:
        yield spark
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.stop()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flights_demo.py",
        description="Streams the flights of 2013 into a log and out again, and counts them.",
    )
    parser.add_argument(
        "--isolation",
        choices=LEVELS,
        default="read_committed",
        help="what the reading job sees (default: %(default)s)",
    )
    parser.add_argument(
        "--months", type=int, choices=range(1, 13), default=12, metavar="N",
        help="only the first N months (default: all 12)",
    )  # fmt: skip
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where log, checkpoints and chart go (default: %(default)s); a run starts it afresh",
    )
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help="write to and read from the broker there, instead of a log in the output",
    )
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    output = Output(asked.output.absolute())
    began = time.monotonic()
    try:
        output.cleared()
        with isolog.connect(**place_of(asked, output)) as log, spark_session() as spark:
            agree = run(spark, log, asked, output)
    except isolog.errors.IsologError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        stopped = not asked.bootstrap and output.stop_broker()
    flights_report.show_files(asked.output, asked.bootstrap, stopped, time.monotonic() - began)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
