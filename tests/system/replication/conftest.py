"""Clusters of three brokers: one that tests of a file share, and is whole before each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import isolog
from isolog.testing import LocalCluster
from tests.system.replication.clusters import CONF, restored

_topics = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    """Three brokers; tests get it by ``cluster``."""
    with LocalCluster(3, conf=CONF) as found:
        yield found


@pytest.fixture
def cluster(shared: LocalCluster) -> Iterator[LocalCluster]:
    """Three brokers that live and reach one another, for a test to do anything to."""
    restored(shared)
    yield shared
    restored(shared)


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[isolog.Log]:
    """Our client of the cluster."""
    with cluster.connect() as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A name that no other test of the process uses."""
    return f"topic-{next(_topics)}"
