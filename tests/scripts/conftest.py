"""A metadata store in memory, and brokers that share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_stream.cluster.stores.store import MetadataStore
from tests.scripts.on_store import OnStore
from tests.scripts.topic_stories import B2
from tests.simulation.store import MemoryRecords, MemoryStore


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    found = MemoryStore(MemoryRecords())
    yield found
    found.close()


@pytest.fixture
def on(store) -> OnStore:
    """Broker b1, which handles all requests."""
    return OnStore(store)


@pytest.fixture
def other(on) -> OnStore:
    """Broker b2."""
    return on.other(B2)
