"""Brokers that serve Flight, and a Flight client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.flight_calls import SERVED, flight_client
from tests.support import BrokerProcess


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A shared broker, which no test may stop or slow down."""
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "log", conf=SERVED) as found:
        yield found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test."""
    with BrokerProcess(tmp_path / "log", conf=SERVED) as found:
        yield found


@pytest.fixture
def flight(shared: BrokerProcess) -> Iterator[fl.FlightClient]:
    """A Flight client of the shared broker."""
    with flight_client(shared.address) as found:
        yield found
