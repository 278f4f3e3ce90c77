"""What Prometheus may know of running queries. It needs prometheus-client (``isolog[metrics]``)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_stream.datasource.watching.lag import PartitionLag
from spark_stream.errors import InvalidOption

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_QUERY: Final = ("query",)
_PARTITION: Final = ("query", "topic", "partition")


class QueryMetrics:
    """Gauges and counters of queries, by the query's name (its id where it has none).

    A query that has ended takes its gauges along; its counters stay. For any thread.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """``registry``: where they are; None: one of their own, to be served."""
        client = _client()
        where = registry if registry is not None else client.CollectorRegistry()
        self._registry = where
        self._lock = threading.Lock()
        self._partitions: dict[str, set[tuple[str, str]]] = {}
        self._lag = client.Gauge(
            "isolog_query_lag_records",
            "Records that a query may read and has not read yet",
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
        """Answers scrapes at ``/metrics`` on this port (0: a free one); returns the port."""
        server, _ = _client().start_http_server(port, registry=self._registry)
        return int(server.server_port)

    def note(self, query: str, progress: Mapping[str, Any], found: Sequence[PartitionLag]) -> None:
        """Take the numbers of a progress."""
        self._rows.labels(query).inc(max(0, progress.get("numInputRows", 0)))
        self._batches.labels(query).inc()
        self._duration.labels(query).set(progress.get("batchDuration", 0) / 1000)
        now = {(each.topic, str(each.partition)) for each in found}
        for each in found:
            labels = (query, each.topic, str(each.partition))
            self._lag.labels(*labels).set(each.records)
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
            for gauge in (self._lag, self._offset, self._latest):
                gauge.remove(query, topic, number)


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise InvalidOption(
            "metrics need prometheus-client, which is not installed",
            hint="Install it where Spark's driver runs: pip install 'isolog[metrics]'.",
        ) from None
    return prometheus_client
