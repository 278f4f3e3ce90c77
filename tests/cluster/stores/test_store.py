"""Each metadata store against the suite that all of them pass."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isolog.errors import IsologError, MetadataRefused, MetadataUnavailable, StorageFailure
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import MetadataStore, TimedStore, end_of
from spark_stream.counting import Histogram, NamedCounts
from spark_stream.testing.store_tests import StoreTests, counted_up
from tests.cluster.conftest import OF_PROCESSES, STORES, Opener
from tests.etcd import needs_etcd
from tests.examples import examples, is_quick

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
        "the changes of the store since a revision",
        "cluster/stores/store.py",
        "cluster/stores/sqlite.py",
    )
    def test_the_store_behaves_as_a_dictionary_with_versions(self) -> None:
        super().test_the_store_behaves_as_a_dictionary_with_versions()


@pytest.mark.usefixtures("etcd")
class TestEtcdStore(OfKind):
    kind = "etcd"
    examples = 5 if is_quick() else 20
    pytestmark = needs_etcd


def _count_in_process(kind: str, folder: Path, times: int, results) -> None:
    store = STORES[kind](folder)()
    results.put(counted_up(store, times))
    store.close()


@pytest.mark.full  # tests/cluster/stores/test_sqlite.py has processes
@pytest.mark.slow
@pytest.mark.parametrize("kind", OF_PROCESSES)
def test_exactly_one_of_concurrent_processes_wins_each_compare_and_set(kind, tmp_path):
    """They also race to create the store."""
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


LAST = "\U0010ffff"
TEXTS = st.text(st.sampled_from(["\0", "a", "b", "\ud7ff", "\ue000", LAST]), max_size=4)


@given(TEXTS, TEXTS)
@example("\ud7ff", "\ue000")
@example("a" + LAST, "b")
def test_a_range_has_exactly_the_keys_with_the_prefix(prefix, key):
    end = end_of(prefix)
    start, known = prefix.encode(), key.encode()
    inside = start <= known and (end is None or known < end.encode())
    assert inside is key.startswith(prefix)


@pytest.mark.parametrize("prefix", ["", LAST, LAST * 3])
def test_some_prefixes_have_no_upper_bound(prefix):
    assert end_of(prefix) is None


def test_write_failure_lasts_until_a_successful_change(tmp_path: Path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    errors = NamedCounts()
    timed = TimedStore(store, Histogram(), Histogram(), errors)
    with closing(timed):
        assert timed.put("kept", {}, 0) is not None
        store._writer.execute("pragma max_page_count = 6")
        with pytest.raises(MetadataUnavailable, match="full"):
            timed.put("big", {"text": "x" * 100_000}, 0)
        assert timed.get("kept") is not None
        assert "full" in timed.write_failure.message, "a read is no sign that it takes changes"
        store._writer.execute("pragma max_page_count = 100000")
        assert timed.put("big", {}, 0) is not None
        assert timed.write_failure is None
    assert errors.read() == {"write": 1}


def test_a_refused_change_is_no_write_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The change is at fault. The store takes others, and a failure before it lasts."""
    store = SqliteStore(tmp_path / "metadata.sqlite")
    errors = NamedCounts()
    timed = TimedStore(store, Histogram(), Histogram(), errors)
    with closing(timed):
        monkeypatch.setattr(store, "put", failing(MetadataRefused("too large")))
        with pytest.raises(MetadataRefused):
            timed.put("key", {}, 0)
        assert timed.write_failure is None
        failure = StorageFailure("no disk")
        monkeypatch.setattr(store, "put", failing(failure))
        with pytest.raises(StorageFailure):
            timed.put("key", {}, 0)
        monkeypatch.setattr(store, "put", failing(MetadataRefused("too large")))
        with pytest.raises(MetadataRefused):
            timed.put("key", {}, 0)
        assert timed.write_failure is failure
    assert errors.read() == {"write": 3}


def failing(error: IsologError) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize("kind", OF_PROCESSES)
def test_a_wait_ends_with_a_change_of_another_store(kind, tmp_path):
    """The next read returns the change. A stopped wait ends immediately."""
    opened = STORES[kind](tmp_path)
    began = time.monotonic()
    with closing(opened()) as store, closing(opened()) as other:
        for number in range(3):
            before = store.changes(0).revision
            changed = threading.Timer(0.01, other.put, (f"k{number}", {}, 0))
            changed.start()
            while not (found := store.changes(before, fresh=False).changed):
                store.await_change(60.0)
            assert list(found) == [f"k{number}"]
            changed.join()
        store.stop_waiting()
        store.await_change(60.0)
    assert time.monotonic() - began < 50
