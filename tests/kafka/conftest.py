"""Gateways in front of the broker that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.clients import started
from tests.support import BrokerProcess


@pytest.fixture
def gateway(shared: BrokerProcess) -> Iterator[str]:
    with started(shared.address) as address:
        yield address


@pytest.fixture
def other_gateway(shared: BrokerProcess) -> Iterator[str]:
    with started(shared.address) as address:
        yield address
