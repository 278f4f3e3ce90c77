"""The faults of a SQLite store: strange files, a full disk, other holders of the lock."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from isolog.errors import (
    MetadataUnavailable,
    NotALogDirectory,
    StorageFailure,
    UnsupportedFormat,
)
from spark_stream.cluster.stores import sqlite
from spark_stream.cluster.stores.sqlite import SqliteStore, _Waiting
from spark_stream.cluster.stores.store import FORM, Delete, Put
from spark_stream.testing.local_cluster import pause_process
from tests.support import eventually, native, open_files


def test_a_file_that_is_no_database_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"certainly not a database\n" * 100)
    with pytest.raises(StorageFailure, match=r"metadata\.sqlite") as caught:
        SqliteStore(path)
    assert caught.value.details["path"] == str(path)
    assert path.read_bytes().startswith(b"certainly")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_a_typed_error(tmp_path):
    with pytest.raises(StorageFailure):
        SqliteStore(tmp_path / "missing" / "metadata.sqlite")


def test_many_stores_may_be_created_on_one_file_together(tmp_path):
    """A broker that starts and one that stops may do so."""
    stores = [SqliteStore(tmp_path / "metadata.sqlite") for _ in range(5)]
    assert [store.put(f"k{n}", {}, 0) is not None for n, store in enumerate(stores)] == [True] * 5
    for store in stores:
        store.close()


def inotify_instances() -> int:
    return list(open_files().values()).count("anon_inode:inotify")


@native  # inotify
def test_a_store_watches_its_file_only_while_a_thread_waits_for_changes(tmp_path):
    """A user has 128 instances of inotify by default, and most stores never wait."""
    before = inotify_instances()
    store = SqliteStore(tmp_path / "metadata.sqlite")
    assert store.put("k", {}, 0) is not None
    assert inotify_instances() == before
    store.await_change(60)
    assert inotify_instances() == before + 1
    store.close()
    assert inotify_instances() == before


PROCESS = """
import json, resource, sys
from pathlib import Path
from spark_stream.cluster.stores import sqlite
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import Delete, Put
from isolog.errors import StorageFailure

store = SqliteStore(Path(sys.argv[1]))
kept = store.put("kept", {"n": 0}, 0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, hard))
errors, keys = [], []
for number in range(100):
    key = f"k{number}"
    try:
        store.put(key, {"text": "x" * 5000}, 0)
        keys.append(key)
    except StorageFailure as error:
        errors.append(str(error))
read = store.get("kept").value
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
again = store.put("kept", {"n": 1}, kept)
found = [record.key for record in store.list("k")]
print(json.dumps({"errors": errors, "keys": keys, "found": found, "read": read, "again": again}))
"""


def test_a_full_disk_fails_changes_but_not_reads_until_there_is_room(tmp_path):
    path = tmp_path / "metadata.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["errors"], "the limit was never met"
    for error in told["errors"]:
        assert "metadata.sqlite" in error
        assert "transaction" not in error, "one failure must not break the store for good"
    assert told["read"] == {"n": 0}
    assert told["again"] > 0
    assert sorted(told["found"]) == sorted([*told["keys"], "kept"])


def test_fsyncs_of_the_store_reach_the_disk_on_macos(tmp_path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    assert store._writer.execute("pragma fullfsync").fetchone() == (1,)
    assert store._writer.execute("pragma synchronous").fetchone() == (2,)  # full
    store.close()


def test_a_full_database_takes_no_changes_until_there_is_room(tmp_path):
    """The error has SQLite's text. A limit of pages causes the same error as a full disk."""
    store = SqliteStore(tmp_path / "metadata.sqlite")
    version = store.put("kept", {"n": 0}, 0)
    store._writer.execute("pragma max_page_count = 6")
    for _ in range(3):
        with pytest.raises(MetadataUnavailable, match="full") as refused:
            store.put("big", {"text": "x" * 100_000}, 0)
        assert refused.value.takes_no_changes
        assert "Make room" in refused.value.hint
    store._writer.execute("pragma max_page_count = 100000")
    assert store.get("big") is None
    assert store.put("kept", {"n": 1}, version) is not None
    assert store.put("big", {"text": "x" * 100_000}, 0) is not None
    store.close()


def holder_of(path: Path, *statements: str) -> sqlite3.Connection:
    """A connection that holds the file for writing, as another process would."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in ("begin immediate", *statements):
        connection.execute(statement)
    return connection


def let_go(holder: sqlite3.Connection) -> None:
    time.sleep(0.3)
    holder.execute("commit")
    holder.close()


def test_a_change_waits_for_a_lock_of_another_process(tmp_path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    holder = holder_of(tmp_path / "metadata.sqlite")
    thread = threading.Thread(target=let_go, args=(holder,))
    thread.start()
    assert store.put("k", {}, 0) is not None
    thread.join()
    store.close()


def test_opening_waits_for_a_process_that_creates_the_file(tmp_path):
    """SQLite itself does not: two brokers that start on a new store would not both come up."""
    holder = holder_of(tmp_path / "metadata.sqlite", "create table record (key text)")
    thread = threading.Thread(
        target=lambda: (time.sleep(0.3), holder.execute("rollback"), holder.close())
    )
    thread.start()
    store = SqliteStore(tmp_path / "metadata.sqlite")
    thread.join()
    assert store.put("k", {}, 0) is not None
    store.close()


class FastClock:
    """A second passes whenever somebody looks."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    steady_us = wall_us = lambda self: 0


def test_a_change_fails_in_time_if_the_holder_is_stopped(tmp_path):
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(path, FastClock())
    holder = holder_of(path)
    with pytest.raises(StorageFailure, match="another process has held it for 10 s") as caught:
        store.put("k", {}, 0)
    assert "continue or end it" in str(caught.value)
    assert store.get("k") is None, "reads wait for no writer"
    holder.execute("rollback")
    holder.close()
    assert store.put("k", {}, 0) is not None, "the turn was given back"
    store.close()


def _die_in_the_middle_of_a_change(path: Path, said) -> None:
    store = SqliteStore(path)

    def stop(connection, revision):
        connection.execute("insert into record values ('half', '{}', 1)")
        said.send("in its turn")
        signal.pause()

    store._change(_Waiting(stop))


def test_a_writer_killed_in_its_turn_blocks_no_other(tmp_path):
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(path)
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_die_in_the_middle_of_a_change, args=(path, its))
    process.start()
    assert mine.poll(60)
    assert mine.recv() == "in its turn"
    process.kill()
    process.join()
    assert store.put("k", {}, 0) is not None
    assert store.get("half") is None
    store.close()


def _put_once(path: Path) -> None:
    store = SqliteStore(path)
    assert store.put("theirs", {}, 0)
    store.close()


def _is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_writer_stopped_as_the_next_blocks_others_only_briefly(tmp_path):
    """It has only the first place in the line."""
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(path)
    holder = holder_of(path)
    process = multiprocessing.get_context("spawn").Process(target=_put_once, args=(path,))
    process.start()
    try:
        eventually(lambda: _is_locked(tmp_path / "metadata.sqlite-turns"))
        pause_process(process.pid)
        holder.execute("rollback")
        holder.close()
        for number in range(20):  # a put that waited for its place would fail after ten seconds
            assert store.put(f"mine/{number}", {}, 0)
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.join()
    assert process.exitcode == 0
    assert store.get("theirs") is not None
    store.close()


def test_reads_of_a_thread_do_not_wait_for_a_change_of_another(tmp_path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    holder = holder_of(tmp_path / "metadata.sqlite")
    written: list[int | None] = []
    writer = threading.Thread(target=lambda: written.append(store.put("k", {}, 0)))
    writer.start()
    eventually(lambda: store._writers._threads._held)
    assert store.get("k") is None
    assert writer.is_alive()
    holder.execute("rollback")
    holder.close()
    writer.join()
    assert written != [None]
    store.close()


def test_a_list_reads_only_keys_with_the_prefix(tmp_path):
    """The test counts the steps of SQLite's virtual machine: about ten per record."""
    store = SqliteStore(tmp_path / "metadata.sqlite")
    rows = [(f"z/{number}", "{}", 1) for number in range(5_000)]
    store._writer.execute("begin immediate")
    store._writer.executemany("insert into record values (?, ?, ?)", rows)
    store._writer.execute("commit")
    for number in range(10):
        store.put(f"b/{number}", {}, 0)
    steps = []
    store._reader.set_progress_handler(lambda: steps.append(1) and None, 1)
    assert len(store.list("b/")) == 10
    assert len(steps) < 500
    store.close()


def _change_on_and_on(path: Path, stop) -> None:
    store = SqliteStore(path)
    version, number = store.put("busy", {"n": 0}, 0), 0
    while not stop.is_set():
        number += 1
        version = store.put("busy", {"n": number}, version)
    store.close()


@pytest.mark.slow
def test_a_busy_process_lets_others_take_their_turn(tmp_path):
    """The test counts its changes while another process waits for one."""
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(path)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_change_on_and_on, args=(path, stop))
    process.start()

    def changes() -> int:
        record = store.get("busy")
        return 0 if record is None else int(record.value["n"])

    try:
        eventually(lambda: changes() > 100)
        meanwhile, version = [], 0
        for _ in range(200):
            before = changes()
            version = store.put("mine", {}, version)
            meanwhile.append(changes() - before)
            time.sleep(0.002)  # one that comes now and then is the one who starves
    finally:
        stop.set()
        process.join()
    store.close()
    assert process.exitcode == 0
    assert sum(meanwhile) / len(meanwhile) < 20


def test_another_programs_database_is_refused_and_not_changed(tmp_path: Path):
    path = tmp_path / "bookmarks.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table bookmarks (place text)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotALogDirectory, match="another program's database"):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("form", [0, FORM + 1])
def test_a_store_in_another_format_is_refused_and_not_changed(tmp_path: Path, form: int):
    path = tmp_path / "store"
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"pragma user_version = {form}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedFormat, match=f"{path} has format {form}.* reads {FORM}"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_the_error_for_another_file_says_that_it_is_no_database(tmp_path: Path):
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(256)) * 32)
    with pytest.raises(StorageFailure, match="restore it from a backup"):
        SqliteStore(path)
    assert path.read_bytes() == bytes(range(256)) * 32


def test_the_error_for_a_missing_folder_names_it(tmp_path: Path):
    with pytest.raises(StorageFailure, match="folder must be there"):
        SqliteStore(tmp_path / "missing" / "store")


# -- what changed ----------------------------------------------------------------------------------


@pytest.mark.rule(
    "the changes of the store since a revision",
    "cluster/stores/store.py",
    "cluster/stores/sqlite.py",
)
def test_after_many_changes_deletions_are_dropped_and_all_records_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "DELETED_KEPT", 10)
    store = SqliteStore(tmp_path / "metadata.sqlite")
    store.put("kept", {}, 0)
    revisions = [store.changes(0).revision]
    for number in range(40):
        store.delete(f"k{number}", store.put(f"k{number}", {}, 0))
        revisions.append(store.changes(0).revision)
        (rows,) = store._reader.execute("select count(*) from deleted").fetchone()
        assert rows <= 20
    assert store.changes(revisions[1]).complete
    assert set(store.changes(revisions[1]).changed) == {"kept"}
    told = store.changes(revisions[-5])
    assert not told.complete
    assert told.changed == {f"k{number}": None for number in range(36, 40)}
    store.close()


def test_an_idle_store_is_polled_without_a_query(tmp_path):
    """The test counts the steps of SQLite's virtual machine."""
    store = SqliteStore(tmp_path / "metadata.sqlite")
    store.put_many([Put(f"k{number}", {}, 0) for number in range(1_000)])
    since = store.changes(0).revision
    steps = []
    store._reader.set_progress_handler(lambda: steps.append(1) and None, 1)
    assert store.changes(since).changed == {}
    assert len(steps) < 20
    store.put("k7", {}, store.get("k7").version)
    steps.clear()
    assert set(store.changes(since).changed) == {"k7"}
    assert len(steps) < 300, "what did not change is not looked at"
    store.close()


def test_many_changes_share_one_fsync(tmp_path):
    """A thousand puts are one transaction of SQLite, which forces its log once."""
    store = SqliteStore(tmp_path / "metadata.sqlite")
    commits = []
    store._writer.set_trace_callback(lambda text: commits.append(text) if text == "commit" else 0)
    versions = store.put_many([Put(f"k{number}", {}, 0) for number in range(1_000)])
    assert store.delete_many(
        [Delete(f"k{number}", version) for number, version in enumerate(versions)]
    )
    assert len(commits) == 2
    assert store.list("") == []
    store.close()


def test_a_failure_among_many_changes_commits_none(tmp_path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    version = store.put("kept", {"n": 0}, 0)
    since = store.changes(0).revision
    store._writer.execute("pragma max_page_count = 8")
    with pytest.raises(MetadataUnavailable, match="full"):
        store.put_many([Put("kept", {}, version), Put("big", {"text": "x" * 100_000}, 0)])
    store._writer.execute("pragma max_page_count = 100000")
    assert store.get("kept").value == {"n": 0}
    assert store.changes(since).changed == {}
    assert store.put("kept", {"n": 1}, version) == since + 1
    store.close()


def test_waiting_changes_of_one_process_share_a_commit(tmp_path):
    """Those that come while one waits for the file need one commit. Each has its answer."""
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(path)
    store.put("there", {}, 0)
    commits: list[int] = []
    original = store._commit
    store._commit = lambda group: (commits.append(len(group)), original(group))[1]
    holder = holder_of(path)
    answers: dict[int, object] = {}

    def put(number: int) -> None:
        key = "there" if number == 7 else f"k{number}"
        answers[number] = store.put(key, {"n": number}, 0)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(commits) + len(store._waiting) == 20)
    holder.execute("rollback")
    holder.close()
    for thread in threads:
        thread.join()
    assert len(commits) <= 2, commits
    assert answers.pop(7) is None, "a record of this key was there"
    assert len(set(answers.values())) == 19
    assert {each.key: each.version for each in store.list("k")} == {
        f"k{number}": version for number, version in answers.items()
    }
    store.close()


def test_a_failed_commit_fails_all_changes_of_its_group(tmp_path):
    store = SqliteStore(tmp_path / "metadata.sqlite")

    def fail(connection, revision):
        raise sqlite3.OperationalError("disk I/O error")

    good, bad = _Waiting(lambda connection, revision: [True]), _Waiting(fail)
    store._waiting.append(good)
    with pytest.raises(StorageFailure, match="disk I/O error"):
        store._change(bad)
    assert isinstance(good.error, StorageFailure)
    assert store.put("k", {}, 0) == 1
    store.close()


@pytest.mark.parametrize("key", ["k", "\ud800"], ids=["defect", "key that is no text"])
def test_an_invalid_change_fails_alone(tmp_path, key):
    store = SqliteStore(tmp_path / "metadata.sqlite")

    def fail(connection, revision):
        connection.execute("insert into record values (?, '{}', ?)", (key, revision + 1))
        raise KeyError("a defect")

    def put(name):
        def change(connection, revision):
            row = (name, revision + 1)
            return [connection.execute("insert into record values (?, '{}', ?)", row).rowcount]

        return change

    good, bad, last = _Waiting(put("a")), _Waiting(fail), _Waiting(put("b"))
    store._waiting.extend([good, bad])
    assert store._change(last) == [1]
    assert good.answers == [1]
    assert isinstance(bad.error, KeyError if key == "k" else StorageFailure)
    assert [(each.key, each.version) for each in store.list("")] == [("a", 1), ("b", 2)]
    assert store.put("c", {}, 0) == 3
    store.close()
