"""The conformance tests of metadata stores.

A subclass of :class:`StoreTests` opens its store. The tests need pytest and hypothesis.
"""

# By its type, the result of a call may be None. Tests that use it have checked that it is not.
# mypy: disable-error-code="union-attr,operator,arg-type,index"

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from spark_stream.cluster.stores.store import Delete, MetadataStore, Put, StoreRecord
from spark_stream.errors import StorageFailure

Opener = Callable[[], MetadataStore]

KEYS: Final = [
    "a",
    "a/1",
    "a/10",
    "a/2",
    "ab",
    "b",
    "a%",
    "a_",
    "A/1",
    "ä/1",
    "a\0b",
    "a\0",
    "🦆",
    "",
]
PREFIXES: Final = ["", "a", "a/", "a/1", "a%", "a_", "%", "_", "ä", "a\0", "🦆", "z"]


class Watcher:
    """A copy of the records with some prefixes, updated by calls of ``changes``."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self.prefixes = prefixes
        self.revision = 0
        self.copy: dict[str, StoreRecord] = {}

    def update(self, store: MetadataStore) -> None:
        changes = store.changes(self.revision, self.prefixes)
        assert changes.revision >= self.revision, "a revision never decreases"
        assert changes.complete or self.revision, "the first answer is complete"
        if changes.complete:
            assert None not in changes.changed.values()
            self.copy = {}
        for key, record in changes.changed.items():
            assert key.startswith(self.prefixes)
            if record is None:
                self.copy.pop(key, None)
            else:
                assert record.key == key
                self.copy[key] = record
        self.revision = changes.revision


class StoreMachine(RuleBasedStateMachine):
    """Puts and deletes with right and wrong versions, compared with a dictionary.

    After each update, watchers have the same contents as the dictionary.
    """

    store_in: Callable[[Path], MetadataStore]

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.opened()
        self.records: dict[str, StoreRecord] = {}
        self.highest: dict[str, int] = {}
        self.watchers = [Watcher(("",)), Watcher(("a/", "b")), Watcher(("\U0001f986",))]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.store.close()
            self.folder.cleanup()

    def opened(self) -> MetadataStore:
        return type(self).store_in(Path(self.folder.name))

    def version(self, key: str) -> int:
        return self.records[key].version if key in self.records else 0

    @rule(key=st.sampled_from(KEYS), value=st.dictionaries(st.text(max_size=3), st.integers()))
    def put(self, key: Any, value: Any) -> None:
        version = self.store.put(key, value, self.version(key))
        assert version is not None
        assert version > self.highest.get(key, 0), "a version never repeats, even after a delete"
        self.highest[key] = version
        self.records[key] = StoreRecord(key, value, version)

    @rule(key=st.sampled_from(KEYS), step=st.sampled_from([-1, 1, 1000]))
    def put_with_another_version(self, key: Any, step: Any) -> None:
        assert self.store.put(key, {"lost": True}, self.version(key) + step) is None

    @rule(key=st.sampled_from(KEYS))
    def put_as_if_there_was_none(self, key: Any) -> None:
        version = self.store.put(key, {}, 0)
        assert (version is None) == (key in self.records)
        if version is not None:
            self.records[key] = StoreRecord(key, {}, version)
            self.highest[key] = version

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: Any) -> None:
        assert self.store.delete(key, self.version(key)) is (key in self.records)
        self.records.pop(key, None)

    @rule(key=st.sampled_from(KEYS), step=st.sampled_from([-1, 1, 1000]))
    def delete_with_another_version(self, key: Any, step: Any) -> None:
        assert self.store.delete(key, self.version(key) + step) is False

    @rule(key=st.sampled_from(KEYS))
    def delete_an_earlier_one(self, key: Any) -> None:
        """Use the version that a record had before it was deleted and created again."""
        if self.highest.get(key, 0) != self.version(key):
            assert self.store.delete(key, self.highest[key]) is False
            assert self.store.put(key, {"lost": True}, self.highest[key]) is None

    @rule(
        puts=st.dictionaries(
            st.sampled_from(KEYS), st.tuples(st.integers(), st.sampled_from([0, 0, 0, 1, -1]))
        )
    )
    def put_many(self, puts: Any) -> None:
        """Put some records with the right version, and some with another."""
        asked = [
            Put(key, {"n": number}, self.version(key) + step)
            for key, (number, step) in puts.items()
        ]
        versions = self.store.put_many(asked)
        assert len(versions) == len(asked)
        for put, version in zip(asked, versions, strict=True):
            assert (version is not None) == (put.expected == self.version(put.key))
            if version is not None:
                assert version > max(self.highest.values(), default=0) or version in versions
                assert version > self.highest.get(put.key, 0)
                self.highest[put.key] = version
                self.records[put.key] = StoreRecord(put.key, put.value, version)

    @rule(deletes=st.dictionaries(st.sampled_from(KEYS), st.sampled_from([0, 0, 0, 1, -1])))
    def delete_many(self, deletes: Any) -> None:
        asked = [Delete(key, self.version(key) + step) for key, step in deletes.items()]
        done = [
            each.key in self.records and each.expected == self.version(each.key) for each in asked
        ]
        assert self.store.delete_many(asked) == done
        for each, deleted in zip(asked, done, strict=True):
            if deleted:
                del self.records[each.key]

    @rule(which=st.integers(0, 2))
    def look(self, which: Any) -> None:
        watcher = self.watchers[which]
        watcher.update(self.store)
        assert watcher.copy == {
            key: record for key, record in self.records.items() if key.startswith(watcher.prefixes)
        }

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule(prefix=st.sampled_from(PREFIXES))
    def list_by_prefix(self, prefix: Any) -> None:
        expected = [self.records[key] for key in sorted(self.records) if key.startswith(prefix)]
        assert self.store.list(prefix) == expected

    @invariant()
    def every_record_is_as_it_was_put(self) -> None:
        for key in KEYS if hasattr(self, "store") else ():
            assert self.store.get(key) == self.records.get(key)


def counted_up(store: MetadataStore, times: int) -> list[int]:
    """Increment a record this many times by compare-and-set. Return the written numbers."""
    written: list[int] = []
    while len(written) < times:
        record = store.get("counter")
        number = (record.value["n"] if record else 0) + 1
        if store.put("counter", {"n": number}, record.version if record else 0) is not None:
            written.append(number)
    return written


class StoreTests:
    """The tests of a metadata store. A subclass defines :meth:`open_store`."""

    examples = 20
    """The number of random histories."""

    def open_store(self, folder: Path) -> MetadataStore:
        """Open a store. All stores of one folder share their records.

        A closed store can be opened again.
        """
        raise NotImplementedError

    @pytest.fixture
    def another(self, tmp_path: Path) -> Iterator[Opener]:
        """Return a function that opens further stores on the folder. All are closed at the end."""
        opened: list[MetadataStore] = []

        def make() -> MetadataStore:
            opened.append(self.open_store(tmp_path))
            return opened[-1]

        yield make
        for each in opened:
            each.close()

    @pytest.fixture
    def store(self, another: Opener) -> MetadataStore:
        """Open a store on the test's folder."""
        return another()

    def test_the_store_behaves_as_a_dictionary_with_versions(self) -> None:
        machine = type("Machine", (StoreMachine,), {"store_in": staticmethod(self.open_store)})
        chosen = settings(
            max_examples=self.examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(machine, settings=chosen)

    @pytest.mark.parametrize("count", [120, 121, 250])
    def test_any_number_of_changes_goes_together(self, store: MetadataStore, count: int) -> None:
        puts = [Put(f"many/{n:03}", {"n": n}, 0) for n in range(count)]
        versions = store.put_many(puts)
        assert None not in versions
        assert [each.value["n"] for each in store.list("many/")] == list(range(count))
        deletes = [Delete(each.key, at) for each, at in zip(puts, versions, strict=True)]
        assert store.delete_many(deletes) == [True] * count

    def test_a_key_may_have_any_character_and_a_value_a_mebibyte(
        self, store: MetadataStore
    ) -> None:
        for first in range(0, 0x2100, 64):
            key = "".join(map(chr, range(first, first + 64)))
            assert store.put(key, {"first": first}, 0) is not None
            assert store.get(key).value == {"first": first}
        large = {"text": "x" * ((1 << 20) - 100)}
        version = store.put("large", large, 0)
        assert store.get("large") == StoreRecord("large", large, version)

    def test_a_changed_record_is_returned_once_in_its_last_state(
        self, store: MetadataStore, another: Opener
    ) -> None:
        store.put("a", {"n": 1}, 0)
        first = store.changes(0)
        assert set(first.changed) == {"a"}
        assert first.complete
        again = store.changes(first.revision)
        assert (again.revision, again.changed, again.complete) == (first.revision, {}, False)
        other = another()
        version = other.put("b", {"n": 1}, 0)
        other.put("b", {"n": 2}, version)
        gone = other.put("c", {}, 0)
        other.delete("c", gone)
        other.delete("a", store.get("a").version)
        told = store.changes(first.revision)
        assert told.changed == {"a": None, "b": store.get("b"), "c": None}
        assert not told.complete
        assert store.changes(told.revision).changed == {}
        assert store.changes(first.revision) == told, (
            "whoever asks from an earlier revision gets it"
        )

    def test_a_key_that_was_created_again_is_returned(self, store: MetadataStore) -> None:
        version = store.put("a", {"n": 1}, 0)
        since = store.changes(0).revision
        store.delete("a", version)
        store.put("a", {"n": 2}, 0)
        assert store.changes(since).changed == {"a": store.get("a")}

    def test_an_unknown_revision_returns_all_records(self, store: MetadataStore) -> None:
        """A copy replaced the store, so the changes since then are unknown."""
        store.put("a", {}, 0)
        told = store.changes(1_000_000)
        assert told.complete
        assert told.changed == {"a": store.get("a")}
        assert told.revision < 1_000_000

    def test_each_of_many_changes_is_a_compare_and_set(self, store: MetadataStore) -> None:
        first = store.put("a", {"n": 1}, 0)
        asked = [Put("a", {"n": 2}, first + 7), Put("b", {"n": 2}, 0), Put("a/1", {}, 1)]
        versions = store.put_many(asked)
        assert [each is None for each in versions] == [True, False, True]
        assert store.get("a").value == {"n": 1}
        assert store.delete_many([Delete("a", first), Delete("b", first), Delete("z", 1)]) == [
            True,
            False,
            False,
        ]
        assert store.get("b").version == versions[1]
        assert store.put_many([]) == []
        assert store.delete_many([]) == []

    def test_two_changes_of_one_key_in_one_call_are_refused(self, store: MetadataStore) -> None:
        version = store.put("a", {}, 0)
        with pytest.raises(ValueError, match="one key"):
            store.put_many([Put("b", {"n": 1}, 0), Put("b", {"n": 2}, 0)])
        with pytest.raises(ValueError, match="one key"):
            store.delete_many([Delete("a", version), Delete("a", 1)])
        assert store.get("b") is None
        assert store.get("a") is not None

    def test_an_invalid_value_prevents_all_of_many_changes(self, store: MetadataStore) -> None:
        with pytest.raises(TypeError):
            store.put_many([Put("a", {}, 0), Put("b", {"n": object()}, 0)])
        assert store.list("") == []

    def test_changes_of_other_prefixes_are_not_returned(self, store: MetadataStore) -> None:
        for key in KEYS:
            store.put(key, {}, 0)
        for prefixes in [(each,) for each in PREFIXES] + [("a/", "b"), ()]:
            told = store.changes(0, prefixes)
            assert set(told.changed) == {key for key in KEYS if key.startswith(prefixes)}, prefixes
        since = store.changes(0).revision
        store.delete("b", store.get("b").version)
        store.put("ab", {}, store.get("ab").version)
        told = store.changes(since, ("a/", "z"))
        assert told.changed == {}
        assert told.revision > since

    def test_a_record_equals_the_written_value(self, store: MetadataStore) -> None:
        value = {"text": "ü\n\0", "none": None, "nested": {"list": [1, 2.5, True]}, "big": 2**60}
        version = store.put("k", value, 0)
        assert store.get("k") == StoreRecord("k", value, version)
        assert version > 0

    def test_a_compare_and_set_that_loses_changes_nothing(self, store: MetadataStore) -> None:
        first = store.put("k", {"n": 1}, 0)
        assert store.put("k", {"n": 2}, 0) is None
        assert store.put("k", {"n": 2}, first + 1) is None
        assert store.delete("k", first + 1) is False
        assert store.get("k") == StoreRecord("k", {"n": 1}, first)

    def test_a_delete_of_nothing_deletes_nothing(self, store: MetadataStore) -> None:
        assert store.delete("k", 0) is False
        assert store.delete("k", 1) is False

    def test_a_version_never_repeats_after_a_delete(self, store: MetadataStore) -> None:
        """Otherwise a reader of the old record could change the new record."""
        first = store.put("k", {"n": 1}, 0)
        assert store.delete("k", first)
        second = store.put("k", {"n": 1}, 0)
        assert second > first
        assert store.put("k", {"n": 2}, first) is None
        assert store.delete("k", first) is False

    def test_a_prefix_is_text_and_not_a_pattern(self, store: MetadataStore) -> None:
        for key in KEYS:
            store.put(key, {}, 0)
        for prefix in PREFIXES:
            found = [record.key for record in store.list(prefix)]
            assert found == sorted(key for key in KEYS if key.startswith(prefix)), prefix

    def test_another_store_reads_a_write(self, store: MetadataStore, another: Opener) -> None:
        other = another()
        version = store.put("k", {"n": 1}, 0)
        assert other.get("k") == StoreRecord("k", {"n": 1}, version)
        assert other.put("k", {"n": 2}, version) > version
        assert store.get("k").value == {"n": 2}
        assert store.put("k", {"n": 3}, version) is None

    def test_changes_include_earlier_writes_and_reads(
        self, store: MetadataStore, another: Opener
    ) -> None:
        other = another()
        since = store.changes(0).revision
        for number in range(50):
            other.put(f"read/{number}", {}, 0)
            store.put(f"written/{number}", {}, 0)
            read = store.get(f"read/{number}")
            told = store.changes(since, fresh=False, known=True)
            assert told.changed[f"read/{number}"] == read
            assert f"written/{number}" in told.changed

    def test_a_changed_copy_of_a_value_changes_no_record(self, store: MetadataStore) -> None:
        value = {"list": [1]}
        store.put("k", value, 0)
        value["list"].append(2)
        store.get("k").value["list"].append(3)
        assert store.get("k").value == {"list": [1]}

    def test_a_prefix_of_the_greatest_letters_has_its_records(self, store: MetadataStore) -> None:
        """No text sorts after all texts with these prefixes."""
        last = "\U0010ffff"
        keys = [
            "a",
            "a" + last,
            "a" + last + "b",
            "b",
            last,
            last + "z",
            last * 2,
            "\ud7ff",
            "\ue000",
        ]
        for key in keys:
            store.put(key, {}, 0)
        for prefix in ("a" + last, last, last * 2, "\ud7ff", "\ue000", "a" + last + "b"):
            found = [record.key for record in store.list(prefix)]
            assert found == sorted(key for key in keys if key.startswith(prefix)), ascii(prefix)

    def test_a_value_that_is_no_json_is_refused_and_changes_nothing(
        self, store: MetadataStore
    ) -> None:
        version = store.put("k", {"n": 1}, 0)
        with pytest.raises(TypeError):
            store.put("k", {"n": object()}, version)
        assert store.get("k").version == version
        assert store.put("k", {"n": 2}, version)

    def test_a_closed_store_raises_an_error(self, store: MetadataStore) -> None:
        store.close()
        store.close()
        with pytest.raises(StorageFailure):
            store.get("k")
        with pytest.raises(StorageFailure):
            store.put("k", {}, 0)
        with pytest.raises(StorageFailure):
            store.changes(0)

    def test_exactly_one_of_concurrent_writers_wins_each_time(self, another: Opener) -> None:
        """Some threads share a store, others have a separate store."""
        shared, results = another(), []
        stores = [shared, shared, another(), another()]
        threads = [
            threading.Thread(target=lambda store=store: results.append(counted_up(store, 25)))
            for store in stores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(number for each in results for number in each) == list(range(1, 101))

    def test_a_watcher_beside_writing_threads_misses_nothing(self, another: Opener) -> None:
        """It updates during the writes, and has all records at the end."""
        stores = [another(), another()]
        stop = threading.Event()

        def write(store: MetadataStore, name: str) -> None:
            versions: dict[str, Any] = dict.fromkeys((f"{name}/{number}" for number in range(5)), 0)
            for turn in range(30):
                for key, version in list(versions.items()):
                    if turn % 3 == 2:
                        assert store.delete(key, version)
                        versions[key] = 0
                    else:
                        versions[key] = store.put(key, {"turn": turn}, version)

        watcher, reader = Watcher(("",)), another()

        def watch() -> None:
            while not stop.is_set():
                watcher.update(reader)

        threads = [
            threading.Thread(target=write, args=(store, name))
            for store, name in zip(stores, "xy", strict=True)
        ]
        watching = threading.Thread(target=watch)
        for thread in (watching, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        store = stores[0]
        for number in range(3):
            store.put(f"last/{number}", {}, 0)
        stop.set()
        watching.join()
        watcher.update(reader)
        assert watcher.copy == {record.key: record for record in store.list("")}
