"""A cluster of three brokers, shared by the tests of a file and repaired before each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import isolog
from isolog.testing import LocalCluster
from tests.system.replication.clusters import CONF, restore

_topics = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    """Three brokers. Tests get them by ``cluster``."""
    with LocalCluster(3, conf=CONF) as found:
        yield found


@pytest.fixture
def cluster(shared: LocalCluster) -> Iterator[LocalCluster]:
    """Three running and connected brokers. A test may kill or partition them."""
    restore(shared)
    yield shared
    restore(shared)


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[isolog.Log]:
    """A client of the cluster."""
    with cluster.connect() as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A topic name unique in the process."""
    return f"topic-{next(_topics)}"
