"""The lag and the progress of running queries: a listener with metrics, and progress bars.

    from isolog.spark import LagListener, progress_bar

    spark.streams.addListener(LagListener(metrics_port=9465))

    with progress_bar(spark):
        query = frame.writeStream.trigger(availableNow=True)….start()
        query.awaitTermination()

The listener reads Spark's report of every micro-batch, and calls no broker. A query's option
``consumer`` is the name under which ``isolog consumers list`` shows its position. The metrics need
prometheus-client (``isolog[metrics]``).

*Lag.* A progress has, for each source, the offset that its last micro-batch went up to. Its
``latestOffset`` is the bound of the query's isolation level when that batch was planned, with the
number of records that an open transaction held back then. The lag is the number that
:func:`spark_stream.consistency.isolation.lag_of` counts. Offsets are dense, so it is exact. Records
of aborted transactions count until the query has passed them.

*Progress bars* are for a terminal or a notebook. A query that reads isolog shows the records that
it has read, and their total. A batch job shows its tasks, because only Spark has the progress
within them. If standard error is neither a terminal nor a notebook, there are no bars.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from spark_stream.datasource.values.offsets import from_json, known_offsets
from spark_stream.errors import InvalidRequest
from spark_stream.exposition import PageServer, prometheus, series_page
from spark_stream.loggers import logger_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


logger = logger_of(__name__)

LOG_EVERY_S: Final = 10.0
_QUERY: Final = ("query",)
_PARTITION: Final = ("query", "topic", "partition")
_LOOK_S: Final = 0.25


class PartitionLag(Struct, frozen=True):
    """One partition of a query: it has read up to ``offset``, and may read up to ``latest``.

    ``held_back``: the records after ``latest`` that an open transaction holds back.
    """

    topic: str
    partition: int
    offset: int
    latest: int
    held_back: int = 0

    @property
    def records(self) -> int:
        """The unread records, with those that are held back."""
        return self.readable + self.held_back

    @property
    def readable(self) -> int:
        """The records that the query could read now."""
        return max(0, self.latest - self.offset)


def lags(progress: Mapping[str, Any]) -> list[PartitionLag]:
    """Return the lag of each partition of a progress (Spark's JSON, parsed).

    Sources of other formats are left out, as they have other offsets.
    """
    return [lag for source in progress.get("sources", ()) for lag in _lags_of(source)]


def _lags_of(source: Mapping[str, Any]) -> Iterator[PartitionLag]:
    try:
        reached, latest = (from_json(_parsed(source.get(n))) for n in ("endOffset", "latestOffset"))
    except InvalidRequest:
        return  # another format's
    for name, topic in sorted(latest.items()):
        known = known_offsets(reached, name, topic.id)
        for number, end in sorted(topic.offsets.items()):
            yield PartitionLag(
                name, number, known.get(number, 0), end, topic.held_back.get(number, 0)
            )


def _parsed(offset: Any) -> Any:
    """Return an offset as an object, from an object or from text, since Spark uses both."""
    if not isinstance(offset, str):
        return {} if offset is None else offset
    try:
        return json.loads(offset)
    except ValueError:
        raise InvalidRequest("no JSON, so no offset of isolog") from None


class LagListener(StreamingQueryListener):
    """A listener of Spark that logs and exports the lag of queries that read isolog.

    Register it with ``spark.streams.addListener``. Other queries are ignored. For each query it
    logs a line at level INFO, such as ``query flights: batch 12, 1,204 records behind (t/0: 1,000,
    t/1: 204)``.
    """

    def __init__(
        self,
        *,
        metrics_port: int | None = None,
        registry: CollectorRegistry | None = None,
        log_every_s: float = LOG_EVERY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a listener, and a page of metrics if ``metrics_port`` is given.

        Args:
            metrics_port: The port of a page for Prometheus, 0 for a free port. Needs
                ``isolog[metrics]``.
            registry: A registry of prometheus-client that gets the metrics, in place of a page.
            log_every_s: The least number of seconds between two lines of a query.
            monotonic: The clock, for tests.

        Raises:
            InvalidOption: Metrics are requested, and prometheus-client is not installed.
        """
        wanted = metrics_port is not None or registry is not None
        self._metrics = QueryMetrics(registry) if wanted else None
        self.port: int | None = None
        if self._metrics is not None and metrics_port is not None:
            self.port = self._metrics.serve(metrics_port)
        self._log_every_s = log_every_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._found: dict[str, list[PartitionLag]] = {}
        self._names: dict[str, str] = {}
        self._logged: dict[str, float] = {}

    def lags(self) -> dict[str, list[PartitionLag]]:
        """Return the lag of each partition by query: by its name, or its id without a name."""
        with self._lock:
            return {self._names[run]: list(found) for run, found in self._found.items()}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the query has no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        found = lags(progress)
        if not found:
            return
        run, name = str(progress["runId"]), str(progress.get("name") or progress["id"])
        with self._lock:
            self._found[run], self._names[run] = found, name
            due = self._monotonic() - self._logged.get(run, -self._log_every_s) >= self._log_every_s
            if due:
                self._logged[run] = self._monotonic()
        if due:
            _log_lag(name, progress["batchId"], found)
        if self._metrics is not None:
            self._metrics.note(name, progress, found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        run = str(event.runId)
        with self._lock:
            known = self._found.pop(run, None)
            name = self._names.pop(run, "")
            self._logged.pop(run, None)
            runs_on = name in self._names.values()  # a later run of it has begun
        if known is not None and not runs_on and self._metrics is not None:
            self._metrics.forget(name)


def _log_lag(name: str, batch: int, found: list[PartitionLag]) -> None:
    behind = Counter({f"{each.topic}/{each.partition}": each.records for each in found})
    most = [f"{where}: {records:,}" for where, records in behind.most_common(5) if records]
    more = sum(1 for records in behind.values() if records) - len(most)
    if more > 0:
        most.append(f"and {more} more")
    where = f" ({', '.join(most)})" if most else ""
    logger.info(
        "query %s: batch %d, %s records behind%s", name, batch, f"{behind.total():,}", where
    )


class QueryMetrics:
    """Gauges and counters of queries, by the query's name (its id without a name).

    When a query ends, its gauges are removed, and its counters stay. For any thread.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register the metrics in ``registry``, by default a new one, which is served."""
        client = prometheus()
        where = registry if registry is not None else client.CollectorRegistry()
        self._registry = where
        self._lock = threading.Lock()
        self._partitions: dict[str, set[tuple[str, str]]] = {}
        self._lag = client.Gauge(
            "isolog_query_lag_records",
            "Unread records of a query: up to the log end under read_uncommitted, else up to the"
            " high watermark",
            _PARTITION,
            registry=where,
        )
        self._held_back = client.Gauge(
            "isolog_query_held_back_records",
            "The records of this lag that an open transaction holds back",
            _PARTITION,
            registry=where,
        )
        self._offset = client.Gauge(
            "isolog_query_offset", "Up to where a query has read", _PARTITION, registry=where
        )
        self._latest = client.Gauge(
            "isolog_query_latest_offset",
            "Up to where a query may read under its isolation level",
            _PARTITION,
            registry=where,
        )
        self._rows = client.Counter(
            "isolog_query_input_rows", "Rows that a query has read", _QUERY, registry=where
        )
        self._batches = client.Counter(
            "isolog_query_batches", "Micro-batches that a query has ended", _QUERY, registry=where
        )
        self._duration = client.Gauge(
            "isolog_query_batch_seconds",
            "How long the last micro-batch of a query took",
            _QUERY,
            registry=where,
        )

    def serve(self, port: int) -> int:
        """Answer scrapes at ``/metrics`` on this port (0: a free one). Return the port."""
        bound = socket.create_server(("", port))
        return PageServer(bound, {"/metrics": series_page(self._registry)}).port

    def note(self, query: str, progress: Mapping[str, Any], found: Sequence[PartitionLag]) -> None:
        """Set the metrics from a progress."""
        self._rows.labels(query).inc(max(0, progress.get("numInputRows", 0)))
        self._batches.labels(query).inc()
        self._duration.labels(query).set(progress.get("batchDuration", 0) / 1000)
        now = {(each.topic, str(each.partition)) for each in found}
        for each in found:
            labels = (query, each.topic, str(each.partition))
            self._lag.labels(*labels).set(each.records)
            self._held_back.labels(*labels).set(each.held_back)
            self._offset.labels(*labels).set(each.offset)
            self._latest.labels(*labels).set(each.latest)
        with self._lock:
            gone = self._partitions.get(query, set()) - now
            self._partitions[query] = now
        self._remove(query, gone)

    def forget(self, query: str) -> None:
        """Remove the gauges of a query that has ended."""
        with self._lock:
            gone = self._partitions.pop(query, set())
        self._remove(query, gone)

    def _remove(self, query: str, partitions: set[tuple[str, str]]) -> None:
        for topic, number in partitions:
            for gauge in (self._lag, self._held_back, self._offset, self._latest):
                gauge.remove(query, topic, number)


@contextmanager
def progress_bar(spark: SparkSession, console: Console | None = None) -> Iterator[None]:
    """Show progress bars for the queries and batch jobs of a ``with`` block.

    Args:
        spark: The session.
        console: A console of rich, by default standard error if it is a terminal or a notebook.
    """
    screen = console or Console(stderr=True)
    if not (screen.is_terminal or screen.is_jupyter):
        yield
        return
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[done]}", markup=False),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    )
    queries = _Queries(bars)
    spark.streams.addListener(queries)
    try:
        with bars, _jobs_shown(spark, bars):
            yield
    finally:
        with suppress(Exception):  # the session may have ended within the block
            spark.streams.removeListener(queries)


class _Queries(StreamingQueryListener):
    """A bar for each query: the records that it has read, of those that it may read."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[TaskID, int]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the first micro-batch has the number of records."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        found = lags(progress)
        if not found:
            return
        run, name = str(progress["runId"]), str(progress.get("name") or progress["id"])
        behind = sum(each.readable for each in found)
        with self._lock:
            if run not in self._shown:
                self._shown[run] = self._bars.add_task(name, total=None, done=""), 0
            task, before = self._shown[run]
            read = before + int(progress.get("numInputRows", 0))
            self._shown[run] = task, read
        total = read + behind
        done = f"{read:,} of {total:,} records"
        self._bars.update(task, completed=read, total=total, done=done)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            task, _ = self._shown.pop(str(event.runId), (None, 0))
        if task is not None:
            self._bars.remove_task(task)


@contextmanager
def _jobs_shown(spark: SparkSession, bars: Progress) -> Iterator[None]:
    """Show Spark's jobs, by a thread, within the block. Spark Connect reports none."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # a session of Spark Connect has no context
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_look, args=(tracker, bars, ended), name="isolog-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _look(tracker: Any, bars: Progress, ended: threading.Event) -> None:
    shown: dict[int, TaskID] = {}
    while not ended.wait(_LOOK_S):
        try:
            jobs = {number: _tasks_of(tracker, number) for number in tracker.getActiveJobsIds()}
        except Exception:  # the session ends
            return
        for number in shown.keys() - jobs.keys():
            bars.remove_task(shown.pop(number))
        for number, (done, total) in sorted(jobs.items()):
            if number not in shown:
                shown[number] = bars.add_task(f"job {number}", total=None, done="")
            words = f"{done:,} of {total:,} tasks"
            bars.update(shown[number], completed=done, total=total or None, done=words)


def _tasks_of(tracker: Any, job: int) -> tuple[int, int]:
    """Return the number of a job's completed tasks, and of all its tasks."""
    info = tracker.getJobInfo(job)
    stages = [tracker.getStageInfo(number) for number in info.stageIds] if info else []
    seen = [stage for stage in stages if stage is not None]
    return sum(each.numCompletedTasks for each in seen), sum(each.numTasks for each in seen)
