"""What only the SQLite store can meet: strange files, a full disk, others that hold the lock."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.errors import DiskFull, StorageFailure


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"certainly not a database\n" * 100)
    with pytest.raises(StorageFailure, match=r"metadata\.sqlite") as caught:
        SqliteStore(path)
    assert caught.value.details["path"] == str(path)
    assert path.read_bytes().startswith(b"certainly")


def test_a_folder_that_is_missing_is_a_typed_error(tmp_path):
    with pytest.raises(StorageFailure):
        SqliteStore(tmp_path / "missing" / "metadata.sqlite")


def test_many_stores_may_be_made_on_one_file_at_once(tmp_path):
    """A broker that starts and one that stops may meet here."""
    stores = [SqliteStore(tmp_path / "metadata.sqlite") for _ in range(5)]
    assert [store.put(f"k{n}", {}, 0) is not None for n, store in enumerate(stores)] == [True] * 5
    for store in stores:
        store.close()


PROCESS = """
import json, resource, sys
from pathlib import Path
from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.errors import DiskFull, StorageFailure

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
    except (DiskFull, StorageFailure) as error:
        errors.append(str(error))
read = store.get("kept").value
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
again = store.put("kept", {"n": 1}, kept)
found = [record.key for record in store.list("k")]
print(json.dumps({"errors": errors, "keys": keys, "found": found, "read": read, "again": again}))
"""


def test_without_room_a_change_fails_reads_go_on_and_changes_come_back(tmp_path):
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


def test_a_full_database_is_a_full_disk_and_the_store_works_on(tmp_path):
    """SQLite's own word for it; a limit of pages gives the very error that a full disk gives."""
    store = SqliteStore(tmp_path / "metadata.sqlite")
    version = store.put("kept", {"n": 0}, 0)
    store._connection.execute("pragma max_page_count = 6")
    for _ in range(3):
        with pytest.raises(DiskFull, match="full"):
            store.put("big", {"text": "x" * 100_000}, 0)
    store._connection.execute("pragma max_page_count = 100000")
    assert store.get("big") is None
    assert store.put("kept", {"n": 1}, version) is not None
    assert store.put("big", {"text": "x" * 100_000}, 0) is not None
    store.close()


def test_a_lock_that_another_holds_for_a_moment_is_waited_for(tmp_path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    holder = sqlite3.connect(
        tmp_path / "metadata.sqlite", isolation_level=None, check_same_thread=False
    )
    holder.execute("begin immediate")

    def let_go() -> None:
        time.sleep(0.3)
        holder.execute("commit")
        holder.close()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert store.put("k", {}, 0) is not None
    thread.join()
    store.close()
