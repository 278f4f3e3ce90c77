"""Steps of other brokers run on separate threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolog.errors import BrokerBusy
from spark_stream.broker.process import Broker
from spark_stream.broker.serving import serving
from spark_stream.broker.serving.pool import MOST
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed
from spark_stream.wire.messages import ACT, RUN_STEPS
from tests.brokers import broker_here


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with broker_here(tmp_path, peer_listen="127.0.0.1:0") as found:
        yield found


def test_calls_of_clients_do_not_delay_steps_of_brokers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def held(*_: object) -> None:
        released.wait(60)
        raise BrokerBusy("released")

    monkeypatch.setattr(serving, "run_call", held)
    client = ClientChannel(broker.address, timeout_s=20)
    peer = ClientChannel(broker.peer_address, timeout_s=20)
    try:
        calls = [client.open(ACT, b"status", b"", end=True) for _ in range(2 * MOST)]
        with pytest.raises(CallFailed):  # refused, and not timed out
            peer.open(RUN_STEPS, b"", b"no steps", end=True).receive(20)
        released.set()
        for call in calls:
            with pytest.raises(CallFailed):
                call.receive(60)
    finally:
        released.set()
        client.close()
        peer.close()
