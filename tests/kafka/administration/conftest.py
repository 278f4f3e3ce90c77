"""Administration clients of a gateway, and of a server of the fixture `server`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import kafka
import kafka.admin
import pytest
from confluent_kafka.admin import (
    AdminClient,
)


@pytest.fixture
def client(gateway: str) -> AdminClient:
    """The client of confluent-kafka."""
    return AdminClient({"bootstrap.servers": gateway})


@pytest.fixture
def python_client(server: str) -> Iterator[kafka.admin.KafkaAdminClient]:
    """The client of kafka-python."""
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=server)) as found:
        yield found
