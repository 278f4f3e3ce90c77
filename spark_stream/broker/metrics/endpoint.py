"""The pages of a broker for Prometheus and for probes: series, and health.

`/metrics` has few series, without labels for topics or partitions. `/metrics/all` has all of
them, for a closer look. Callers are not authenticated, so the address should be one of an internal
network. No page has a secret. Names of topics and principals are at `/metrics/all` only, and so are
ids of transactions, except those of sinks.
"""

from __future__ import annotations

import socket

from spark_stream.broker.counts import ChangeCounter
from spark_stream.broker.metrics.scrape import Scrape, ScrapedBroker
from spark_stream.broker.metrics.series import GROUPS
from spark_stream.exposition import PageServer, health_page
from spark_stream.figures import figures_page


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

        def scrape() -> Scrape:
            return Scrape(broker)

        pages = {
            "/metrics": figures_page(scrape, [each for each in GROUPS if not each.detailed]),
            "/metrics/all": figures_page(scrape, GROUPS),
            "/health/live": health_page(lambda: None),
            "/health/ready": health_page(broker.problem),
        }
        self._server = PageServer(bound, pages)
        self.stop = self._server.stop
