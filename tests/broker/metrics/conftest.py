"""A broker in this process that shows its metrics, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import isolog
from spark_stream.broker.process import Broker
from tests.brokers import broker_here


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Broker]:
    """In this process, so that a test can hold one of its partitions, or end its lease."""
    listen = "127.0.0.1:0"
    settings: dict[str, Any] = {
        "flight_listen": listen,
        "metrics_listen": listen,
        "mapped_reads": False,
        "topic": {"flush": "batch"},
    }
    with broker_here(tmp_path, **settings) as found:
        yield found


@pytest.fixture
def client(shown: Broker) -> Iterator[isolog.Log]:
    with isolog.connect(shown.address) as found:
        yield found
