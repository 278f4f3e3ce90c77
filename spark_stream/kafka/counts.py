"""Counts of a gateway, and their series for Prometheus."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

from spark_stream.counting import Distribution, Histogram, NamedCounts, Tally
from spark_stream.exposition import PageServer, health_page
from spark_stream.figures import ByLabels, Figures, Subject, counter, figures_page, gauge, histogram
from spark_stream.kafka.refusals import KafkaCode

_NAMES: Final = {int(each): each.name for each in KafkaCode}
_ERROR: Final = "error_code"


class RequestCounts:
    """The counts of requests with one name: their durations, and the error codes in answers."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self.errors = NamedCounts()

    def note_errors(self, answer: Mapping[str, Any]) -> None:
        """Count the error codes in the fields of an answer, also those of its parts."""
        for code in _codes_in(answer):
            self.errors.add(_NAMES.get(code, str(code)))


def _codes_in(answer: Mapping[str, Any]) -> Iterator[int]:
    for name, each in answer.items():
        if name == _ERROR:
            if each:
                yield int(each)
        elif isinstance(each, list) and each and isinstance(each[0], dict):
            for part in each:
                yield from _codes_in(part)


class GatewayCounts:
    """The counts of a gateway since its start. ``connections``: those that are open.

    ``received`` and ``sent`` have the bytes of requests and answers, ``appended`` and ``fetched``
    the record batches in them.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.accepted = 0
        self.received = Tally()
        self.sent = Tally()
        self.appended = Tally()
        self.fetched = Tally()
        self._requests: dict[str, RequestCounts] = {}

    def of(self, api: str) -> RequestCounts:
        """Return the counts of requests with this name, such as ``Fetch``."""
        return self._requests.get(api) or self._requests.setdefault(api, RequestCounts())

    def requests(self) -> dict[str, RequestCounts]:
        """Return the counts by the names of requests that clients have sent."""
        return dict(self._requests)


class GatewayFigures(Figures[GatewayCounts], subject=Subject.KAFKA_GATEWAY):
    """The series of a gateway."""

    kafka_gateway_connections: float = gauge("Open connections of Kafka clients")
    kafka_gateway_accepted_connections: float = counter("Connections that were accepted")
    kafka_gateway_request_seconds: Mapping[tuple[str, ...], Distribution] = histogram(
        "Requests until their answer, by name. A `Fetch` may wait for records", "request"
    )
    kafka_gateway_errors: ByLabels = counter(
        "Error codes in answers. A request may have one for each partition. Clients also get codes"
        " without a failure, such as `UNSUPPORTED_VERSION` of `ApiVersions`",
        *("request", "code"),
    )
    kafka_gateway_received_bytes: float = counter("Bytes of requests")
    kafka_gateway_sent_bytes: float = counter("Bytes of answers")
    kafka_gateway_appended_records: float = counter("Records that clients have sent")
    kafka_gateway_fetched_records: float = counter("Records that clients have fetched")

    @classmethod
    def read(cls, scrape: GatewayCounts) -> Self:
        requests = scrape.requests()
        return cls(
            kafka_gateway_connections=scrape.connections,
            kafka_gateway_accepted_connections=scrape.accepted,
            kafka_gateway_request_seconds={
                (api,): each.seconds.read() for api, each in requests.items()
            },
            kafka_gateway_errors={
                (api, code): count
                for api, each in requests.items()
                for code, count in each.errors.read().items()
            },
            kafka_gateway_received_bytes=scrape.received.read().bytes,
            kafka_gateway_sent_bytes=scrape.sent.read().bytes,
            kafka_gateway_appended_records=scrape.appended.read().records,
            kafka_gateway_fetched_records=scrape.fetched.read().records,
        )


def serve_counts(
    bound: socket.socket, counts: GatewayCounts, problem: Callable[[], str | None]
) -> Callable[[], None]:
    """Serve the series and the health of a gateway. Return a function that ends the server.

    ``bound``: a bound socket, which the server owns from this call on. ``problem`` returns the
    reason why clients should use other gateways, or None.

    Raises:
        InvalidOption: prometheus-client is not installed.
    """
    pages = {
        "/metrics": figures_page(lambda: counts, [GatewayFigures]),
        "/health/live": health_page(lambda: None),
        "/health/ready": health_page(problem),
    }
    return PageServer(bound, pages).stop
