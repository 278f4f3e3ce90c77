"""A broker in this process that shows its metrics, and a client of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.process import Broker


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Broker]:
    """In this process, so that a test can hold one of its partitions, or end its lease."""
    mask = os.umask(0o077)
    listen = "127.0.0.1:0"
    found = Broker(
        BrokerConfig(
            dir=tmp_path / "log",
            listen=listen,
            flight_listen=listen,
            metrics_listen=listen,
            mapped_reads=False,
            topic={"flush": "batch"},
        )
    )
    yield found
    found.stop()
    os.umask(mask)


@pytest.fixture
def client(shown: Broker) -> Iterator[isolog.Log]:
    with isolog.connect(shown.address) as found:
        yield found
