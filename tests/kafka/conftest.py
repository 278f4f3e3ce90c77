"""Gateways in front of a broker that tests share, and a real Kafka with the same clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.clients import started
from tests.kafka_jars import GATEWAY_AND_KAFKA, real_kafka
from tests.support import BrokerProcess

__all__ = ["real_kafka"]


@pytest.fixture
def gateway(shared: BrokerProcess) -> Iterator[str]:
    with started(shared.address) as address:
        yield address


@pytest.fixture
def other_gateway(shared: BrokerProcess) -> Iterator[str]:
    with started(shared.address) as address:
        yield address


@pytest.fixture(params=GATEWAY_AND_KAFKA)
def server(request: pytest.FixtureRequest) -> str:
    """The address of a gateway. In ``make test-all`` also that of a real Kafka."""
    return _address(request, "gateway")


@pytest.fixture(params=GATEWAY_AND_KAFKA)
def servers(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The addresses of two gateways. In ``make test-all`` also twice that of a real Kafka."""
    return _address(request, "gateway"), _address(request, "other_gateway")


def _address(request: pytest.FixtureRequest, gateway: str) -> str:
    if request.param == "gateway":
        return str(request.getfixturevalue(gateway))
    return str(request.getfixturevalue("real_kafka").bootstrap)


@pytest.fixture
def admin_client(server: str) -> AdminClient:
    """The administration client of confluent-kafka."""
    return AdminClient({"bootstrap.servers": server})
