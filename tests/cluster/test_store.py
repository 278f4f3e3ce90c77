"""What every metadata store must do: one suite for all of them."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from spark_stream.cluster.store import MetadataStore, Record
from spark_stream.errors import StorageFailure
from tests.cluster.conftest import OF_PROCESSES, STORES
from tests.storage import logs

KEYS = ["a", "a/1", "a/10", "a/2", "ab", "b", "a%", "a_", "A/1", "ä/1", "a\0b", "a\0", "🦆", ""]
PREFIXES = ["", "a", "a/", "a/1", "a%", "a_", "%", "_", "ä", "a\0", "🦆", "z"]


class StoreMachine(RuleBasedStateMachine):
    """Puts and deletes with right and wrong versions, against a dictionary."""

    kind: str

    @initialize()
    def open(self):
        self.folder = logs.folder()
        self.opener = STORES[self.kind](self.folder.__enter__())
        self.store = self.opener()
        self.records: dict[str, Record] = {}
        self.highest: dict[str, int] = {}

    def teardown(self):
        if hasattr(self, "folder"):
            self.store.close()
            self.folder.__exit__(None, None, None)

    def version(self, key: str) -> int:
        return self.records[key].version if key in self.records else 0

    @rule(key=st.sampled_from(KEYS), value=st.dictionaries(st.text(max_size=3), st.integers()))
    def put(self, key, value):
        version = self.store.put(key, value, self.version(key))
        assert version is not None
        assert version > self.highest.get(key, 0), "a version never repeats, after a delete either"
        self.highest[key] = version
        self.records[key] = Record(key, value, version)

    @rule(key=st.sampled_from(KEYS), step=st.sampled_from([-1, 1, 1000]))
    def put_with_another_version(self, key, step):
        assert self.store.put(key, {"lost": True}, self.version(key) + step) is None

    @rule(key=st.sampled_from(KEYS))
    def put_as_if_there_was_none(self, key):
        version = self.store.put(key, {}, 0)
        assert (version is None) == (key in self.records)
        if version is not None:
            self.records[key] = Record(key, {}, version)
            self.highest[key] = version

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key):
        assert self.store.delete(key, self.version(key)) is (key in self.records)
        self.records.pop(key, None)

    @rule(key=st.sampled_from(KEYS), step=st.sampled_from([-1, 1, 1000]))
    def delete_with_another_version(self, key, step):
        assert self.store.delete(key, self.version(key) + step) is False

    @rule(key=st.sampled_from(KEYS))
    def delete_an_earlier_one(self, key):
        """The version that a record had before it was deleted and made anew."""
        if self.highest.get(key, 0) != self.version(key):
            assert self.store.delete(key, self.highest[key]) is False
            assert self.store.put(key, {"lost": True}, self.highest[key]) is None

    @rule()
    def restart(self):
        self.store.close()
        self.store = self.opener()

    @rule(prefix=st.sampled_from(PREFIXES))
    def list_by_prefix(self, prefix):
        expected = [self.records[key] for key in sorted(self.records) if key.startswith(prefix)]
        assert self.store.list(prefix) == expected

    @invariant()
    def every_record_is_as_it_was_put(self):
        for key in KEYS if hasattr(self, "store") else ():
            assert self.store.get(key) == self.records.get(key)


@pytest.mark.parametrize("name", STORES)
def test_a_store_does_what_a_dictionary_with_versions_does(name):
    machine = type("Machine", (StoreMachine,), {"kind": name})
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=25))


def test_a_record_is_what_was_put(store):
    value = {"text": "ü\n\0", "none": None, "nested": {"list": [1, 2.5, True]}, "big": 2**60}
    version = store.put("k", value, 0)
    assert store.get("k") == Record("k", value, version)
    assert version > 0


def test_a_compare_and_set_that_loses_changes_nothing(store):
    first = store.put("k", {"n": 1}, 0)
    assert store.put("k", {"n": 2}, 0) is None
    assert store.put("k", {"n": 2}, first + 1) is None
    assert store.delete("k", first + 1) is False
    assert store.get("k") == Record("k", {"n": 1}, first)


def test_a_delete_of_nothing_deletes_nothing(store):
    assert store.delete("k", 0) is False
    assert store.delete("k", 1) is False


def test_a_version_never_repeats_after_a_delete(store):
    """Else somebody who read the old record could change the new one."""
    first = store.put("k", {"n": 1}, 0)
    assert store.delete("k", first)
    second = store.put("k", {"n": 1}, 0)
    assert second > first
    assert store.put("k", {"n": 2}, first) is None
    assert store.delete("k", first) is False


def test_a_prefix_is_text_and_not_a_pattern(store):
    for key in KEYS:
        store.put(key, {}, 0)
    for prefix in PREFIXES:
        found = [record.key for record in store.list(prefix)]
        assert found == sorted(key for key in KEYS if key.startswith(prefix)), prefix


def test_what_one_writes_another_sees(store, another):
    other = another()
    version = store.put("k", {"n": 1}, 0)
    assert other.get("k") == Record("k", {"n": 1}, version)
    assert other.put("k", {"n": 2}, version) > version
    assert store.get("k").value == {"n": 2}
    assert store.put("k", {"n": 3}, version) is None


def test_what_a_reader_does_with_a_value_changes_no_record(store):
    value = {"list": [1]}
    store.put("k", value, 0)
    value["list"].append(2)
    store.get("k").value["list"].append(3)
    assert store.get("k").value == {"list": [1]}


def test_a_prefix_of_the_greatest_letters_has_its_records(store):
    """There is no text behind all that start with them."""
    last = "\U0010ffff"
    keys = ["a", "a" + last, "a" + last + "b", "b", last, last + "z", last * 2, "\ud7ff", "\ue000"]
    for key in keys:
        store.put(key, {}, 0)
    for prefix in ("a" + last, last, last * 2, "\ud7ff", "\ue000", "a" + last + "b"):
        found = [record.key for record in store.list(prefix)]
        assert found == sorted(key for key in keys if key.startswith(prefix)), ascii(prefix)


def test_a_value_that_is_no_json_is_refused_and_changes_nothing(store):
    version = store.put("k", {"n": 1}, 0)
    with pytest.raises(TypeError):
        store.put("k", {"n": object()}, version)
    assert store.get("k").version == version
    assert store.put("k", {"n": 2}, version)


def test_a_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(StorageFailure):
        store.get("k")
    with pytest.raises(StorageFailure):
        store.put("k", {}, 0)


def counted_up(store: MetadataStore, times: int) -> list[int]:
    """Adds one to a record that many times by compare-and-set; says which numbers it wrote."""
    written = []
    while len(written) < times:
        record = store.get("counter")
        number = (record.value["n"] if record else 0) + 1
        if store.put("counter", {"n": number}, record.version if record else 0) is not None:
            written.append(number)
    return written


def test_of_threads_that_write_at_once_exactly_one_wins_each_time(another):
    """Some share a store, some have their own."""
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


def _count_in_process(kind: str, folder: Path, times: int, results) -> None:
    store = STORES[kind](folder)()
    results.put(counted_up(store, times))
    store.close()


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
