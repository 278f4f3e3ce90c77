"""The flights of 2013 into a log and out again, by two streaming jobs at the same time.

    SPARK_CONF_DIR=conf spark-submit examples/flights_demo.py

The first job streams flights from Parquet files into the typed topic ``flights``. The second reads
the topic under an isolation level, joins the airlines, and keeps delays per carrier and month.
During the run one micro-batch fails and is replayed, a load of wrong flights is aborted
(``flights_mishaps``), and a broker that leads partitions is killed and restarted
(``flights_brokers``). Then a batch query reads the same records again and joins the weather, and
others count what each isolation level sees. Every count must be as predicted, to the record, or the
exit code is 1.

Without ``--bootstrap`` the run starts three brokers, in a directory of the output. With
``--brokers 1`` the log is a directory whose broker is started on demand. Each run starts afresh
there: it stops the brokers of an interrupted run, removes the files of that run, and stops its own
brokers at the end. With ``--bootstrap`` the topic is kept: a run appends to it, and reads the
records that it appended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import flights_data
import flights_mishaps
import flights_report
from flights_brokers import Brokers, LostLeader, open_brokers, open_console, stop_brokers
from flights_jobs import (
    FILES_A_BATCH,
    TOPIC,
    Job,
    as_option,
    count_at,
    offsets_of,
    read_again,
    start_reading,
    start_writing,
)
from flights_mishaps import FAILING_BATCH, Hush, PlannedFailure, Stumble, WrongLoad, log_ends
from flights_report import LEVELS, Records
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import isolog

if TYPE_CHECKING:
    from flights_lake import Lake

HELD_BATCHES = 3
"""Micro-batches that are written while the wrong load is open, and while a broker is down."""
POLL_S = 0.1


# -- a run ----------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run of the demo: its resources, and its results so far."""

    spark: SparkSession
    log: isolog.Log
    asked: argparse.Namespace
    output: Output
    brokers: Brokers
    lake: Lake | None = None
    """The copy of the topic as a table, with ``--lake``."""
    failed_attempt: int = 0
    """Records that the failed attempt of a micro-batch left in the log."""

    def __post_init__(self) -> None:
        self.place = self.brokers.place
        self.flights = flights_data.flights(self.asked.months)
        self.files = flights_data.write_weeks(self.flights, self.output.input)
        self.before = log_ends(self.log, TOPIC)
        upto = sum(self.files[: FILES_A_BATCH * (FAILING_BATCH + 1)])
        ends = sum(self.before.values()) + upto
        self.stumble = Stumble(self.place, TOPIC, self.output.mishap, ends)
        self.batch_rows = sum(self.files[FILES_A_BATCH * FAILING_BATCH :][:FILES_A_BATCH])

    def whole(self) -> bool:
        """Stream, query and count. Return whether every count is as predicted."""
        cluster = self.brokers.cluster
        where = next(iter(self.brokers.place.values()))
        own = f"{len(cluster.brokers)} brokers of its own, {where}" if cluster else where
        flights_report.show_start(self.flights.num_rows, len(self.files), own)
        reading, wrote, load = self._stream()
        ends = log_ends(self.log, TOPIC)
        records = Records(self.flights.num_rows, self.failed_attempt, load.records)
        start, end = as_option(self.before), as_option(ends)

        delays = self.spark.table("delays").collect()
        rain = read_again(self.spark, self.place, self.asked.isolation, start, end).collect()
        flights_report.show_delays(delays)
        flights_report.show_rain(rain)
        flights_report.draw(delays, rain, self.output.chart)

        seen = {each: count_at(self.spark, self.place, each, start, end) for each in LEVELS}
        predicted = flights_report.show_levels(records, seen)
        agree = flights_report.show_counts(
            self.asked.isolation,
            records,
            wrote=wrote,
            stored={number: end - self.before.get(number, 0) for number, end in ends.items()},
            read=reading.total,
            table=sum(row.flights for row in delays),
            batch=sum(row.flights for row in rain),
        )
        console = flights_report.console
        console.print("\nThe reading job's last streaming offset is where it stands in the log:")
        console.print(f"  {json.dumps(offsets_of(reading.end_offset))}", soft_wrap=True)
        return predicted and agree and self._tables_agree()

    def _tables_agree(self) -> bool:
        """Compare the table with the log, if there is a lake. Return whether all counts agree."""
        if self.lake is None:
            return True
        self.lake.finish()
        return flights_report.show_lake(*self.lake.counts(self.spark))

    def _stream(self) -> tuple[Job, int, WrongLoad]:
        """Run both jobs to their end. Return the reader, the written rows, the aborted load."""
        self.output.mishap.touch()
        self.hush = Hush(self.spark)
        load: WrongLoad | None = None
        lost: LostLeader | None = None
        loaded = 0
        with flights_report.Progress(self.flights.num_rows, self.asked.isolation) as shown:
            writing = Job(self._writer())
            while not log_ends(self.log, TOPIC) and writing.query.isActive:  # the sink makes it
                time.sleep(POLL_S)
            if self.lake is not None:
                self.lake.begin()
            reading = Job(self._reader())
            while True:
                done = not writing.query.isActive
                try:
                    for news in writing.news():
                        shown.wrote(*news, writing.total)
                except StreamingQueryException as error:
                    self._fail_as_planned(error)
                    shown.failed(FAILING_BATCH, self.failed_attempt)
                    writing.query = self._writer()  # from its checkpoint: the micro-batch again
                    load = WrongLoad(self.log, TOPIC, self.flights)
                    shown.loads(load.records)
                    loaded = sum(log_ends(self.log, TOPIC).values())
                    continue
                # Once some of the micro-batch is in the log, and some of it is not.
                begun = done or sum(log_ends(self.log, TOPIC).values()) > loaded
                if load is not None and lost is None and self._kills and begun:
                    lost = self._lose_leader(shown)
                held = done or len(writing.rows) >= FAILING_BATCH + HELD_BATCHES
                if held and lost is not None and lost.away:
                    shown.came_back(lost.broker, lost.bring_back())
                if load is not None and load.open and held:
                    load.abort()
                    shown.aborts(load.records)
                backlog = self._behind(reading)
                for batch, rows, seconds in reading.news():
                    backlog = self._behind(reading)
                    if rows or not backlog:  # at the end it skips records that it does not see
                        shown.read(batch, rows, seconds, reading.total, backlog)
                shown.behind(backlog)
                if done and backlog <= 0:
                    break
                time.sleep(POLL_S)
            reading.query.stop()
        if load is None:
            raise SystemExit("the planned failure did not happen")
        return reading, writing.total, load

    @property
    def _kills(self) -> bool:
        """Whether a leader is killed. Under read_uncommitted a failover may remove read records."""
        return self.brokers.cluster is not None and self.asked.isolation != "read_uncommitted"

    def _lose_leader(self, shown: flights_report.Progress) -> LostLeader:
        lost = LostLeader(self.brokers, self.log, TOPIC)
        shown.lost(lost)
        return lost

    def _writer(self) -> StreamingQuery:
        files, checkpoint = self.output.input, self.output.checkpoint("write")
        return start_writing(self.spark, self.brokers, files, checkpoint, self.stumble)

    def _reader(self) -> StreamingQuery:
        start, checkpoint = as_option(self.before), self.output.checkpoint("read")
        return start_reading(self.spark, self.place, self.asked.isolation, start, checkpoint)

    def _behind(self, reading: Job) -> int:
        """The number of records that the reading job has not passed yet, seen or not."""
        at = self.before | offsets_of(reading.end_offset)
        ends = log_ends(self.log, TOPIC)
        return sum(end - at.get(number, 0) for number, end in ends.items())

    def _fail_as_planned(self, error: StreamingQueryException) -> None:
        """Record the rows of the planned failure, and end the mishap. Raise any other error."""
        if PlannedFailure.__name__ not in str(error):
            raise error
        self.failed_attempt = self.batch_rows - int(self.output.mishap.read_text())
        self.output.mishap.unlink()
        self.hush.lift()


@dataclass(frozen=True)
class Output:
    """The output folder of a run. Only files of an earlier run are ever removed."""

    path: Path

    @property
    def input(self) -> Path:
        return self.path / "input"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def lake(self) -> Path:
        return self.path / "lake"

    @property
    def mishap(self) -> Path:
        """While this file exists, one micro-batch fails."""
        return self.path / "fail-once"

    @property
    def chart(self) -> Path:
        return self.path / "delays.png"

    def checkpoint(self, job: str) -> Path:
        return self.path / "checkpoints" / job

    def cleared(self) -> None:
        """Make the folder, or remove the files of an earlier run. Refuse any other folder."""
        mark = self.path / ".isolog-demo"
        if self.path.exists() and any(self.path.iterdir()) and not mark.exists():
            raise SystemExit(f"{self.path} holds other files: give an empty or new --output")
        self.path.mkdir(parents=True, exist_ok=True)
        mark.touch()
        stop_brokers(self.log)
        for left in (self.input, self.log, self.lake, self.path / "checkpoints"):
            shutil.rmtree(left, ignore_errors=True)
        self.lake.with_name("lake-worker.log").unlink(missing_ok=True)
        self.chart.unlink(missing_ok=True)
        self.mishap.unlink(missing_ok=True)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    spark = (
        SparkSession.builder.appName("isolog: flights of 2013")
        .config("spark.sql.files.minPartitionNum", FILES_A_BATCH)  # a task for each file
        .getOrCreate()
    )
    spark.sparkContext.addPyFile(flights_mishaps.__file__)
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
        help="folder of log, checkpoints and chart (default: %(default)s), emptied by each run",
    )
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help="write to and read from the brokers there, instead of a log in the output",
    )
    parser.add_argument(
        "--brokers",
        type=int,
        choices=range(1, 6),
        default=3,
        metavar="N",
        help="how many brokers of its own the run has, with three replicas of each partition"
        " (default: %(default)s); of several, one is killed on the way, except under"
        " read_uncommitted; 1 is a log in a directory",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="its own brokers use TLS and authentication: the jobs may use the topic flights, and"
        " nothing else",
    )
    parser.add_argument(
        "--etcd",
        action="store_true",
        help="its own brokers keep their metadata in three members of etcd, of which the leader is"
        " killed on the way",
    )
    parser.add_argument(
        "--console",
        action="store_true",
        help="show the brokers on a web page during the run (isolog console)",
    )
    parser.add_argument(
        "--lake",
        action="store_true",
        help="copy the topic into a Delta table during the run, and compare DuckDB, polars and"
        " Spark with the log at the end",
    )
    asked = parser.parse_args()
    if (asked.secure or asked.etcd) and (asked.bootstrap or asked.brokers == 1):
        parser.error("--secure and --etcd need several brokers started by the run")
    if asked.lake and (asked.secure or asked.bootstrap):
        parser.error("--lake needs brokers started by the run, without --secure")
    return asked


def main() -> int:
    asked = arguments()
    output = Output(asked.output.absolute())
    began = time.monotonic()
    try:
        output.cleared()
        with (
            open_brokers(
                output.log, asked.brokers, asked.bootstrap, secure=asked.secure, etcd=asked.etcd
            ) as brokers,
            isolog.connect(**brokers.place) as log,
            open_console(brokers.place) if asked.console else nullcontext() as console,
            spark_session() as spark,
            ExitStack() as ended,
        ):
            if console is not None:
                flights_report.show_console(console, brokers.place.get("profile"))
            lake = None
            if asked.lake:
                from flights_lake import open_lake  # it needs more packages

                lake = ended.enter_context(open_lake(log, brokers.place, output.lake))
            agree = Run(spark, log, asked, output, brokers, lake).whole()
            if console is not None and sys.stdin.isatty():
                input("The console shows what is there now. Press Enter to end it. ")
    except isolog.errors.IsologError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if not asked.bootstrap:
            stop_brokers(output.log)
    seconds = time.monotonic() - began
    flights_report.show_files(
        asked.output, asked.bootstrap, asked.brokers, seconds, etcd=asked.etcd
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
