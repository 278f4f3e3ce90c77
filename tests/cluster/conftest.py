"""Metadata stores by name: what a conformance test runs against, once for each implementation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isolog.testing import LocalEtcd
from spark_stream.cluster.stores.etcd import EtcdStore
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import MetadataStore
from tests.etcd import needs_etcd
from tests.simulation.store import MemoryRecords, MemoryStore

Opener = Callable[[], MetadataStore]


def _sqlite(folder: Path) -> Opener:
    return lambda: SqliteStore(folder / "metadata.sqlite")


def _memory(_: Path) -> Opener:
    records = MemoryRecords()
    return lambda: MemoryStore(records)


_running: list[LocalEtcd] = []
_names = itertools.count()


def _etcd(_: Path) -> Opener:
    name = f"cluster-{next(_names)}"
    return lambda: EtcdStore(_running[0].client(), name)


# An implementation comes as a function: it takes an empty folder, and returns a function that opens
# a store there. All open stores see the same records, and a closed one can be opened again.
STORES: dict[str, Callable[[Path], Opener]] = {
    "sqlite": _sqlite,
    "memory": _memory,
    "etcd": _etcd,
}
EACH_STORE = ["sqlite", "memory", pytest.param("etcd", marks=needs_etcd)]
OF_PROCESSES = ("sqlite",)  # those that several processes share


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    """One member, for all tests of this process."""
    with LocalEtcd(1, tmp_path_factory.mktemp("etcd")) as found:
        _running[:] = [found]
        yield found


@pytest.fixture(params=EACH_STORE)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "etcd":
        request.getfixturevalue("etcd")
    return request.param


@pytest.fixture
def another(kind, tmp_path) -> Iterator[Opener]:
    """Opens one more store on the test's folder. All are closed in the end."""
    opener = STORES[kind](tmp_path)
    opened: list[MetadataStore] = []

    def make() -> MetadataStore:
        opened.append(opener())
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(another) -> MetadataStore:
    return another()
