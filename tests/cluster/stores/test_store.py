"""Each metadata store against the suite that all of them pass."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.testing.store_tests import StoreTests, counted_up
from tests.cluster.conftest import OF_PROCESSES, STORES, Opener
from tests.etcd import needs_etcd
from tests.examples import examples

_openers: dict[tuple[str, Path], Opener] = {}


class OfKind(StoreTests):
    """A kind of store, as ``conftest`` opens it."""

    kind: str
    examples = examples(20)

    def open_store(self, folder: Path) -> MetadataStore:
        key = self.kind, folder
        if key not in _openers:
            _openers[key] = STORES[self.kind](folder)
        return _openers[key]()


class TestMemoryStore(OfKind):
    kind = "memory"


class TestSqliteStore(OfKind):
    kind = "sqlite"

    @pytest.mark.rule("compare-and-set of a metadata record", "cluster/stores/sqlite.py")
    @pytest.mark.rule(
        "what changed in the store since a revision",
        "cluster/stores/store.py",
        "cluster/stores/sqlite.py",
    )
    def test_it_does_what_a_dictionary_with_versions_does(self) -> None:
        super().test_it_does_what_a_dictionary_with_versions_does()


@pytest.mark.usefixtures("etcd")
class TestEtcdStore(OfKind):
    kind = "etcd"
    pytestmark = needs_etcd


def _count_in_process(kind: str, folder: Path, times: int, results) -> None:
    store = STORES[kind](folder)()
    results.put(counted_up(store, times))
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", OF_PROCESSES)
def test_of_processes_that_open_and_write_at_once_exactly_one_wins_each_time(kind, tmp_path):
    """None of them has a store before: they race for making it, too."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_count_in_process, args=(kind, tmp_path, 40, results))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    written = [number for _ in processes for number in results.get(timeout=60)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(written) == list(range(1, 81))
