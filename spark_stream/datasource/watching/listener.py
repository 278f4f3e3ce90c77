"""A listener that watches queries: how far each is behind, in the log of the driver and as metrics.

    from spark_stream.datasource.watching.listener import LagListener

    spark.streams.addListener(LagListener(metrics_port=9465))

It looks at what Spark reports of every micro-batch, and asks no broker. A query's option
``consumer`` is the name under which ``isolog consumers list`` shows where it is.

The metrics need prometheus-client (``isolog[metrics]``).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_stream.datasource.watching.lag import PartitionLag, lags
from spark_stream.exposition import PageServer, prometheus, series_page
from spark_stream.loggers import logger_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_QUERY: Final = ("query",)
_PARTITION: Final = ("query", "topic", "partition")


class QueryMetrics:
    """Gauges and counters of queries, by the query's name (its id where it has none).

    When a query ends, its gauges are removed; its counters stay. For any thread.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """``registry``: where the metrics go, by default one of their own, which is served."""
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
        """Answer scrapes at ``/metrics`` on this port (0: a free one); return the port."""
        bound = socket.create_server(("", port))
        return PageServer(bound, {"/metrics": series_page(self._registry)}).port

    def note(self, query: str, progress: Mapping[str, Any], found: Sequence[PartitionLag]) -> None:
        """Take the numbers of a progress."""
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
        """Forget a query that has ended."""
        with self._lock:
            gone = self._partitions.pop(query, set())
        self._remove(query, gone)

    def _remove(self, query: str, partitions: set[tuple[str, str]]) -> None:
        for topic, number in partitions:
            for gauge in (self._lag, self._held_back, self._offset, self._latest):
                gauge.remove(query, topic, number)


logger = logger_of(__name__)

LOG_EVERY_S: Final = 10.0


class LagListener(StreamingQueryListener):
    """Watches all queries of a session that read isolog, and ignores the others.

    For each query a line is logged at level INFO, every ``log_every_s`` seconds at most:
    ``query flights: batch 12, 1,204 records behind (t/0: 1,000, t/1: 204)``.
    """

    def __init__(
        self,
        *,
        metrics_port: int | None = None,
        registry: CollectorRegistry | None = None,
        log_every_s: float = LOG_EVERY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``metrics_port``: answer Prometheus' scrapes there (0: on a free port, see ``port``).

        ``registry``: put the metrics there, for whoever serves that. Without either there are none.

        Raises:
            InvalidOption: metrics are asked for, and prometheus-client is not installed.
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
        """Return the lag of each partition by query: by its name, or its id where it has none."""
        with self._lock:
            return {self._names[run]: list(found) for run, found in self._found.items()}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: nothing is known of the query yet."""

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
            logger.info("%s", _line(name, progress, found))
        if self._metrics is not None:
            self._metrics.note(name, progress, found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: what was known of the query still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        run = str(event.runId)
        with self._lock:
            known = self._found.pop(run, None)
            name = self._names.pop(run, "")
            self._logged.pop(run, None)
            runs_on = name in self._names.values()  # a later run of it has begun meanwhile
        if known is not None and not runs_on and self._metrics is not None:
            self._metrics.forget(name)


def _line(name: str, progress: Mapping[str, Any], found: list[PartitionLag]) -> str:
    behind = Counter({f"{each.topic}/{each.partition}": each.records for each in found})
    most = [f"{where}: {records:,}" for where, records in behind.most_common(5) if records]
    more = sum(1 for records in behind.values() if records) - len(most)
    if more > 0:
        most.append(f"and {more} more")
    where = f" ({', '.join(most)})" if most else ""
    return f"query {name}: batch {progress['batchId']}, {behind.total():,} records behind{where}"
