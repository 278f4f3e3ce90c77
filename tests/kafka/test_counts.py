"""The series of a gateway, by real scrapes after counted requests."""

from __future__ import annotations

import socket
import struct

import pytest

from spark_stream.kafka.counts import serve_counts
from tests.broker.metrics.scraping import page, scraped
from tests.kafka.clients import (
    asked,
    batch,
    connected,
    produced,
    producer_at,
    read_at,
    sent,
    started_together,
)
from tests.kafka.test_connection import framed
from tests.support import eventually

pytestmark = pytest.mark.slow


def test_a_gateway_counts_requests_errors_bytes_and_records(shared, log, topic):
    pytest.importorskip("prometheus_client")
    log.create_topic(topic, partitions=2)
    seconds = "isolog_kafka_gateway_request_seconds_count"
    with started_together(shared.address, 1) as found:
        [(address, gateway)] = found.items()
        bound = socket.create_server(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{bound.getsockname()[1]}"
        problems: list[str] = []
        stop = serve_counts(bound, gateway.counts, lambda: next(iter(problems), None))
        try:
            with connected(address) as sock:
                request = framed("FindCoordinator", 0, {"key": "g"})
                sock.sendall(request)
                (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
                sock.recv(size, socket.MSG_WAITALL)
                series = scraped(metrics, "/metrics")
                assert series(seconds, request="FindCoordinator") == 1
                assert series("isolog_kafka_gateway_connections") == 1
                assert series("isolog_kafka_gateway_received_bytes_total") == len(request)
                assert series("isolog_kafka_gateway_sent_bytes_total") == 4 + size
            assert produced(address, topic, batch(0, 3, -1))["error_code"] == 0
            for number in (7, 8):
                assert produced(address, topic, batch(0, 3, -1), partition=number)["error_code"]
            asked(address, "Metadata", 5, {"topics": [{"name": "missing"}]})
            sent(producer_at(address), topic, [{"value": b"v", "partition": 1}] * 4)
            assert sum(map(len, read_at(address, topic, 2).values())) == 7

            def are_closed() -> bool:
                return scraped(metrics, "/metrics")("isolog_kafka_gateway_connections") == 0

            eventually(are_closed)
            series = scraped(metrics, "/metrics")
            assert series("isolog_kafka_gateway_accepted_connections_total") >= 6
            assert series("isolog_kafka_gateway_appended_records_total") == 7
            assert series("isolog_kafka_gateway_fetched_records_total") == 7
            assert series(seconds, request="Produce") >= 4
            unknown = {"code": "UNKNOWN_TOPIC_OR_PARTITION"}
            errors = "isolog_kafka_gateway_errors_total"
            assert series(errors, request="Produce", **unknown) == 2
            assert series(errors, request="Metadata", **unknown) == 1
            assert page(metrics, "/health/live") == (200, "ok\n")
            assert page(metrics, "/health/ready") == (200, "ok\n")
            problems.append("it stops")
            assert page(metrics, "/health/ready") == (503, "it stops\n")
        finally:
            stop()
