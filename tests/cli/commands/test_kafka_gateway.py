"""``isolog kafka-gateway``: its start without brokers, its metrics, and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.broker.metrics.scraping import page, scraped
from tests.cli.conftest import COMMAND, Call, Started
from tests.kafka.clients import WAIT_S, produced
from tests.kafka.kafka_batches import by_kafka
from tests.secure_brokers import asking
from tests.support import BrokerProcess, free_port

__all__ = ["asking"]

GATEWAY = ("kafka-gateway", "--listen", "127.0.0.1:0", "--bootstrap")
RECORDS = by_kafka([(None, b"v", [], 0)])


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[Started, str, str]]:
    """A gateway that serves. Yield its process, its address, and that of its metrics."""
    listens = ("--metrics-listen", "127.0.0.1:0")
    pipe = subprocess.PIPE
    with Started(
        [*COMMAND, *GATEWAY, *arguments, *listens], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = process.stderr.readline().decode()
        assert shown.startswith("metrics and health are shown at http://"), shown
        address = process.stdout.readline().decode().split()[-1]
        yield process, address, shown.strip().removesuffix("/").rpartition("/")[2]


@pytest.mark.parametrize("more", [(), ("--sasl",)])
def test_a_gateway_does_not_start_without_brokers(call: Call, more: tuple[str, ...]) -> None:
    refused = call(*GATEWAY, f"127.0.0.1:{free_port()}", *more)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ")
    assert "no broker" in refused.err, refused.err


def test_a_gateway_without_a_credential_needs_logins(call: Call, asking: BrokerProcess) -> None:
    refused = call(*GATEWAY, asking.address)
    assert (refused.code, "requires authentication" in refused.err) == (1, True)
    with serving(asking.address, "--sasl", "--until-eof") as (process, _, _):
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_gateway_shows_metrics_until_the_end_of_its_input(shared, log, topic) -> None:
    pytest.importorskip("prometheus_client")
    log.create_topic(topic)
    with serving(shared.address, "--until-eof") as (process, address, metrics):
        assert produced(address, topic, RECORDS)["error_code"] == 0
        series = scraped(metrics, "/metrics")
        assert series("isolog_kafka_gateway_appended_records_total") == 1
        assert page(metrics, "/health/ready") == (200, "ok\n")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
