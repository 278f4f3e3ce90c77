"""The pages of a broker for Prometheus and for probes: series, and health.

`/metrics` has few series, without labels for topics or partitions. `/metrics/all` has all of
them, for a closer look. Callers are not authenticated, so the address should be one of an internal
network. No page has a secret. Names of topics and principals are at `/metrics/all` only, and so are
ids of transactions, except those of sinks.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

from spark_stream.broker.counts import ChangeCounter
from spark_stream.broker.metrics.scrape import Scrape, ScrapedBroker
from spark_stream.broker.metrics.series import GROUPS, Labels, Sample, Series, SeriesKind
from spark_stream.counting import Distribution
from spark_stream.exposition import PageServer, health_page, prometheus, series_page


class SeriesCollector:
    """The collector of a broker's series for prometheus-client, which calls it for each scrape."""

    def __init__(self, broker: ScrapedBroker, *, detailed: bool) -> None:
        self._broker = broker
        self._detailed = detailed
        self._families = prometheus().metrics_core

    def describe(self) -> list[Any]:
        """Return no families: registration needs no scrape."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families of one scrape."""
        scrape = Scrape(self._broker)
        for group in GROUPS:
            if self._detailed or not group.detailed:
                figures = group.read(scrape)
                for series in group.series():
                    yield self._family(series, getattr(figures, series.field))

    def _family(self, series: Series, found: Sample | Mapping[Labels, Sample]) -> Any:
        samples: Mapping[Labels, Sample] = found if isinstance(found, Mapping) else {(): found}
        family = {
            SeriesKind.COUNTER: self._families.CounterMetricFamily,
            SeriesKind.GAUGE: self._families.GaugeMetricFamily,
            SeriesKind.HISTOGRAM: self._families.HistogramMetricFamily,
        }[series.kind](series.name, series.meaning, labels=series.labels)
        for labels, sample in samples.items():
            if isinstance(sample, Distribution):
                upto = [(str(bound), count) for bound, count in sample.upto]
                buckets = [*upto, ("+Inf", sample.count)]
                family.add_metric(labels, buckets, sum_value=sample.seconds)
            else:
                family.add_metric(labels, float(sample))
        return family


class MetricsEndpoint:
    """The server of a broker's pages, from construction until :meth:`stop`."""

    def __init__(self, bound: socket.socket, broker: ScrapedBroker) -> None:
        """Serve the pages. ``bound``: a bound socket, which the endpoint owns from this call on.

        Raises:
            InvalidOption: prometheus-client is not installed.
        """
        host = broker.here.host
        changes = ChangeCounter(host.broker_id, host.view.now, host.counts)
        host.view.subscribe(changes.take)
        pages = {
            "/metrics": self._page(broker, detailed=False),
            "/metrics/all": self._page(broker, detailed=True),
            "/health/live": health_page(lambda: None),
            "/health/ready": health_page(broker.problem),
        }
        self._server = PageServer(bound, pages)
        self.stop = self._server.stop

    @staticmethod
    def _page(broker: ScrapedBroker, *, detailed: bool) -> Any:
        client = prometheus()
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(SeriesCollector(broker, detailed=detailed))
        client.ProcessCollector(registry=registry)
        return series_page(registry)
