"""Clusters of three brokers: one that tests of a file share, and is whole before each of them."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import isolog
from spark_stream.testing import LocalCluster, local_cluster
from tests.examples import is_quick
from tests.forks import popen
from tests.system.replication.clusters import CONF, restored

_topics = itertools.count()


@pytest.fixture(scope="package", autouse=True)
def forked() -> Iterator[None]:
    """In `make test` brokers are forks; in `make test-all` processes of their own."""
    if not is_quick():
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        instead = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
        patch.setattr(local_cluster, "subprocess", instead)
        yield


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
