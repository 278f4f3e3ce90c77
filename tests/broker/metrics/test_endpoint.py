"""The pages of a broker: readiness, and answers to other requests."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import InvalidConfig, InvalidOption, PortInUse
from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.process import Broker
from tests.broker.metrics.scraping import Samples, page, scraped
from tests.support import eventually

READY = "/health/ready"


def test_a_serving_broker_is_live_and_ready(shown: Broker) -> None:
    assert page(shown.metrics_address, "/health/live") == (200, "ok\n")
    assert page(shown.metrics_address, READY) == (200, "ok\n")
    found = eventually(lambda: controller(shown))
    assert found("isolog_ready") == found("isolog_lease_held") == 1
    assert (found("isolog_store_reachable"), found("isolog_leaders")) == (1, 0)


def controller(broker: Broker) -> Samples | None:
    """A scrape of the controller, or None if the broker is not the controller yet."""
    found = scraped(broker.metrics_address, "/metrics")
    return found if found("isolog_controller") else None


def test_a_broker_with_an_expired_lease_is_live_and_not_ready(
    shown: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown.core.lease_keeper, "serves", lambda: False)
    status, text = page(shown.metrics_address, READY)
    assert status == 503
    assert "lease expired" in text
    assert page(shown.metrics_address, "/health/live")[0] == 200
    assert scraped(shown.metrics_address, "/metrics")("isolog_ready") == 0


@pytest.mark.rule("the readiness of a broker", "broker/process.py")
def test_a_broker_that_leads_by_promises_is_ready_without_its_lease(
    shown: Broker, client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("t")
    (partition,) = shown.core.host.open_replicas()
    monkeypatch.setattr(shown.core.lease_keeper, "serves", lambda: False)
    partition._state.serves = lambda: False
    assert page(shown.metrics_address, READY)[0] == 503
    monkeypatch.setattr(type(partition._state), "_is_promised", lambda _: True)
    assert page(shown.metrics_address, READY)[0] == 200
    assert scraped(shown.metrics_address, "/metrics")("isolog_lease_held") == 0


def test_a_stopping_broker_is_not_ready(shown: Broker) -> None:
    shown._stop_asked.set()
    assert page(shown.metrics_address, READY) == (503, "the broker stops\n")


def test_an_unknown_path_gets_the_list_of_paths(shown: Broker) -> None:
    assert page(shown.metrics_address, "/")[0] == 404
    assert "/metrics/all" in page(shown.metrics_address, "/nothing")[1]


def test_a_starting_broker_is_live_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for followers for long. A scrape works before it has a lease."""
    seen = []

    def begin(broker: Broker, *rest: Any) -> None:
        address = broker.metrics_address
        seen.extend(page(address, path) for path in ("/health/live", READY))
        assert scraped(address)("isolog_lease_held") == 0
        original(broker, *rest)

    original = Broker._begin
    monkeypatch.setattr(Broker, "_begin", begin)
    listen = "127.0.0.1:0"
    broker = Broker(BrokerConfig(dir=tmp_path / "log", listen=listen, metrics_listen=listen))
    broker.stop()
    assert seen == [(200, "ok\n"), (503, "the broker starts\n")]


def test_only_many_silent_clients_delay_scrapes(shown: Broker) -> None:
    """Each has a thread, so they have a limit. Closed ones make room again."""
    host, port = shown.metrics_address.split(":")
    with ExitStack() as silent:
        silent.enter_context(socket.create_connection((host, int(port))))
        assert page(shown.metrics_address, READY)[0] == 200
        for _ in range(20):
            silent.enter_context(socket.create_connection((host, int(port))))
        eventually(lambda: not answers(shown))
        names = [each.name for each in threading.enumerate()]
        assert sum("process_request_thread" in each for each in names) <= 16
    eventually(lambda: answers(shown))


def answers(broker: Broker) -> bool:
    try:
        return page(broker.metrics_address, READY)[0] == 200
    except OSError:
        return False


def test_without_the_setting_a_broker_serves_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    broker = Broker(BrokerConfig(dir=tmp_path / "log", listen="127.0.0.1:0"))
    assert broker.metrics_address == ""
    broker.stop()
    with pytest.raises(InvalidOption, match="prometheus-client"):
        Broker(
            BrokerConfig(dir=tmp_path / "log", listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
        )


def test_an_unusable_metrics_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="metrics_listen"):
        BrokerConfig.load(None, dir=tmp_path, metrics_listen="unix:/a.sock")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = BrokerConfig(dir=tmp_path / "log", listen="127.0.0.1:0", metrics_listen=address)
        with pytest.raises(PortInUse):
            Broker(config)
