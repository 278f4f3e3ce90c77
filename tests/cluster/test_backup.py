"""A store that is deleted or replaced while it is open, and copies that are made and put back."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from isolog.errors import InvalidRequest, MetadataLost, StorageFailure, WrongCluster
from spark_stream.cluster.backup import back_up, distrust_logs, put_back
from spark_stream.cluster.brokers import CLUSTER
from spark_stream.cluster.consumers import CONSUMERS, group_of, with_group
from spark_stream.cluster.stores import sqlite, store_files
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.consistency import groups
from spark_stream.consistency.groups import Group, GroupMember
from spark_stream.consistency.isolation import Isolation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


@pytest.mark.rule(
    "a store that is deleted under its brokers, and a restored backup",
    "cluster/stores/sqlite.py",
    "cluster/backup.py",
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_store_that_was_deleted_refuses_changes_until_it_is_written_back(path, caplog, beside):
    one, two = SqliteStore(path), SqliteStore(path)
    version = one.put("k", {"n": 1}, 0)
    assert version is not None
    remove(path) if beside else path.unlink()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one.changes(version)
        assert [each.levelname for each in caplog.records] == ["ERROR"]
        assert f"the metadata store {path} was deleted" in caplog.text
        assert "isolog cluster restore" in caplog.text
    for store in (one, two):
        with pytest.raises(MetadataLost, match="was deleted"):
            store.put("k", {"n": 2}, version)
        assert store.get("k").value == {"n": 1}
    two.write_back()
    assert two.lost is None
    one.changes(version)
    assert one.lost is None
    second = one.put("k", {"n": 2}, version)
    assert second is not None
    assert two.put("k", {"n": 3}, second) is not None
    one.close()
    assert two.put("l", {}, 0) is not None
    two.close()
    again = SqliteStore(path)
    assert [each.value for each in again.list("")] == [{"n": 3}, {}]
    again.close()


def test_a_lost_store_refuses_changes_without_a_turn(path, monkeypatch):
    """Brokers try some changes many times a second."""
    store = SqliteStore(path)
    store.put("k", {}, 0)
    remove(path)
    with pytest.raises(MetadataLost):
        store.put("l", {}, 0)
    turns: list[float] = []
    monkeypatch.setattr(store._writers, "take", lambda attempt, timeout_s: turns.append(timeout_s))
    for _ in range(3):
        with pytest.raises(MetadataLost):
            store.put("l", {}, 0)
    assert turns == []
    monkeypatch.undo()
    store.close()


def test_a_written_back_copy_is_synced_like_the_store(path, monkeypatch):
    """With any defaults of SQLite's build."""
    store = SqliteStore(path)
    remove(path)
    connected = sqlite._connected

    def careless(path: Path):
        made = connected(path)
        made.execute("pragma synchronous = off")
        return made

    monkeypatch.setattr(sqlite, "_connected", careless)
    store.write_back()
    assert store.lost is None
    assert store._writer.execute("pragma synchronous").fetchone() == (2,)
    store.close()


def test_a_store_that_was_replaced_refuses_changes_until_its_file_is_back(path, tmp_path):
    store = SqliteStore(path)
    store.put("mine", {}, 0)
    away = tmp_path / "away"
    os.rename(path, away)
    path.write_bytes(b"")
    with pytest.raises(MetadataLost, match="was replaced"):
        store.put("k", {}, 0)
    with pytest.raises(InvalidRequest, match="another file is at the path"):
        store.write_back()
    assert path.read_bytes() == b""
    os.replace(away, path)
    store.changes(0)
    assert store.put("k", {}, 0) is not None
    with pytest.raises(InvalidRequest, match="is still at"):
        store.write_back()
    store.close()


def test_a_lost_store_is_saved_beside_its_place_when_its_broker_ends(path):
    store = SqliteStore(path)
    store.put("k", {"n": 1}, 0)
    remove(path)
    store.close()
    assert not path.exists()
    put_back(*saved_as_cluster(path))
    again = SqliteStore(path)
    assert again.get("k").value == {"n": 1}
    again.close()


def test_a_failed_copy_of_a_lost_store_leaves_no_file(path):
    store = SqliteStore(path)
    store.put("k", {}, 0)
    remove(path)
    store._reader.close()
    store.close()
    assert not list(path.parent.glob("*.saved*"))


def test_a_lost_store_is_saved_despite_an_incomplete_earlier_copy(path):
    store = SqliteStore(path)
    store.put("k", {}, 0)
    remove(path)
    path.with_name(f"{path.name}.saved-{os.getpid()}").write_bytes(b"a part")
    store.close()
    assert [each.name for each in path.parent.glob("*.saved*")] == [f"{path.name}.saved"]


def test_a_written_back_copy_is_adopted_by_all_and_another_file_is_not(path):
    """A later file may get the inode of one that was open."""
    store, late = SqliteStore(path), SqliteStore(path)
    path.unlink()
    store.write_back()
    SqliteStore(path).close()
    late.changes(0)
    assert late.lost is None
    late.close()
    store.close()
    path.rename(path.with_name("away"))
    with closing(SqliteStore(path)) as other:
        assert not other._place.is_copy()


def full_store(path: Path) -> SqliteStore:
    """A store with a cluster's record whose tables are in its file, not only in the log."""
    store = SqliteStore(path)
    store.put(CLUSTER, {"id": "c"}, 0)
    store.close()
    return SqliteStore(path)


def records(connected_to: Path) -> list[str]:
    with closing(SqliteStore(connected_to)) as store:
        return [each.key for each in store.list("")]


@pytest.mark.rule(
    "the file that brokers may open as their store, and the detection of an overwritten one",
    "cluster/stores/store_files.py",
)
def test_another_file_in_the_place_of_an_open_store_is_not_opened(path, tmp_path):
    """SQLite would apply the log of the open file to it, and damage both."""
    store, copy = full_store(path), tmp_path / "copy"
    back_up(path, copy)
    store.put("later", {}, 0)
    os.rename(path, tmp_path / "away")
    shutil.copyfile(copy, path)
    with pytest.raises(MetadataLost, match="is not the file that running brokers have open"):
        SqliteStore(path)
    with pytest.raises(MetadataLost, match="is not the file that running brokers have open"):
        back_up(path, tmp_path / "another")
    assert path.read_bytes() == copy.read_bytes()
    path.unlink()
    store.write_back()
    assert records(path) == [CLUSTER, "later"]
    store.close()
    assert records(path) == [CLUSTER, "later"]


@pytest.mark.quick("True")
@pytest.mark.rule(
    "the file that brokers may open as their store, and the detection of an overwritten one",
    "cluster/stores/store_files.py",
)
@pytest.mark.parametrize("raw", [True, False])
def test_an_overwritten_store_is_detected_and_not_written(path, tmp_path, raw):
    """The file is the same one, with the content of a backup or of an older copy by ``cp``."""
    store, copy = full_store(path), tmp_path / "copy"
    shutil.copyfile(path, copy) if raw else back_up(path, copy)
    other = SqliteStore(path)
    version = store.put("later", {}, 0)
    store._writer.execute("pragma wal_checkpoint")
    store.changes(0)
    assert store.lost is None, "brokers write into the file themselves"
    written = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(copy.read_bytes())
        file.truncate()
    os.utime(path, ns=(written + 1, written + 1))
    assert store.changes(version).changed == {}
    for each in (store, other):
        with pytest.raises(MetadataLost, match="was overwritten while brokers"):
            each.put("more", {}, 0)
        with pytest.raises(MetadataLost, match="was overwritten"):
            each.get("later")
    with pytest.raises(MetadataLost, match="was overwritten"):
        store.write_back()
    with pytest.raises(MetadataLost, match="was overwritten"):
        SqliteStore(path)
    store.close()
    other.close()
    del store, other, each
    gc.collect()  # must not close the connections, which would write their log
    assert path.read_bytes() == copy.read_bytes()
    with pytest.raises(MetadataLost, match="is of another file"):
        SqliteStore(path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    assert records(path) == [CLUSTER]


def test_a_store_is_opened_after_an_incomplete_checkpoint(path):
    """A full disk stops a checkpoint after the header, which then counts missing pages."""
    store = full_store(path)
    store.put("later", {"much": "x" * 20_000}, 0)  # it has new pages, so the header changes
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        file.seek(28)  # the number of pages in SQLite's header
        file.write((pages + 1).to_bytes(4))
    late = SqliteStore(path)
    store._writer.execute("pragma wal_checkpoint")
    for each in (store, late):
        each.changes(0)
        assert each.lost is None
    late.put("even later", {}, 0)
    late.close()
    store.close()
    assert records(path) == [CLUSTER, "even later", "later"]


def test_a_temporarily_unreadable_file_is_not_reported_as_overwritten(path, monkeypatch):
    """A process may be short of descriptors."""
    store = full_store(path)

    def refused(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.parent.as_uri()}?mode=ro", uri=True)  # a folder is no file

    monkeypatch.setattr(store_files, "_connected_to_file", refused)
    os.utime(path, ns=(1, 1))
    with pytest.raises(StorageFailure, match=r"unable to open|I/O error"):
        store.put("k", {}, 0)
    monkeypatch.undo()
    assert store.put("k", {}, 0) is not None
    assert store.lost is None
    store.close()


def test_a_backup_is_not_opened_with_the_log_of_the_store_that_it_replaces(path, tmp_path):
    store, copy = full_store(path), tmp_path / "copy"
    back_up(path, copy)
    store.put("later", {}, 0)
    log = path.with_name(path.name + "-wal")
    left = log.read_bytes()
    store.close()
    log.write_bytes(left)  # as brokers leave it that are killed
    shutil.copyfile(copy, path)
    with pytest.raises(MetadataLost, match=r"metadata\.sqlite-wal beside it is of another file"):
        SqliteStore(path)
    assert path.read_bytes() == copy.read_bytes()
    put_back(copy, path, force=True)
    assert records(path) == [CLUSTER]


def test_a_store_is_opened_after_a_power_failure(path, monkeypatch):
    """The disk may have the note about a checkpoint, and not its pages. The log has them."""
    store = full_store(path)
    store.put("later", {}, 0)
    log = path.with_name(path.name + "-wal")
    left = log.read_bytes()
    store._place._revision = 1_000
    store._place._write_revision()
    store.close()
    log.write_bytes(left)
    with pytest.raises(MetadataLost, match=r"metadata\.sqlite-wal beside it is of another file"):
        SqliteStore(path)
    monkeypatch.setattr(store_files, "boot_id", lambda: "a later boot")
    assert records(path) == [CLUSTER, "later"]


def test_a_damaged_copy_is_not_written_back(path, monkeypatch):
    store = full_store(path)
    remove(path)
    damaged = sqlite3.connect(":memory:")
    damaged.executescript(
        "create table a (b); pragma writable_schema = on;"
        " update sqlite_master set rootpage = 77 where name = 'a'"
    )
    monkeypatch.setattr(store, "_reader", damaged)
    with pytest.raises(StorageFailure, match="damaged"):
        store.write_back()
    assert not path.exists()
    monkeypatch.undo()
    damaged.close()
    store.write_back()
    assert store.lost is None
    store.close()


def saved_as_cluster(path: Path) -> tuple[Path, Path]:
    """The saved copy, which gets a cluster's record: without one it is no backup."""
    saved = path.with_name(path.name + ".saved")
    store = SqliteStore(saved)
    store.put(CLUSTER, {"id": "c"}, 0)
    store.close()
    return saved, path


def test_a_backup_is_made_while_the_store_is_written_and_never_replaces_a_file(path, tmp_path):
    store, copy = SqliteStore(path), tmp_path / "copy"
    store.put(CLUSTER, {"id": "c"}, 0)
    store.put("numbers/x", {"next": 5}, 0)
    store.put("other", {"next": 5}, 0)
    back_up(path, copy)
    store.put("later", {}, 0)
    with pytest.raises(InvalidRequest, match="exists"):
        back_up(path, copy)
    found = SqliteStore(copy)
    assert [each.key for each in found.list("")] == [CLUSTER, "numbers/x", "other"]
    found.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    store.close()
    with pytest.raises(InvalidRequest, match="exists"):
        put_back(copy, path)
    put_back(copy, path, force=True)
    store = SqliteStore(path)
    assert store.get("later") is None
    assert store.get("numbers/x").value["next"] > 1_000_000
    assert store.get("other").value == {"next": 5}, "it is no counter"
    store.close()


def test_a_restore_replaces_the_target_of_a_link(path, tmp_path):
    (tmp_path / "volume").mkdir()
    real, copy = tmp_path / "volume" / "store", tmp_path / "copy"
    path.symlink_to(real)
    store = SqliteStore(real)
    store.put(CLUSTER, {"id": "c"}, 0)
    back_up(path, copy)
    store.put("later", {}, 0)
    store.close()
    put_back(copy, path, force=True)
    assert path.is_symlink()
    store = SqliteStore(real)
    assert store.get("later") is None
    store.close()


def test_members_of_a_group_have_to_join_again_after_a_restore(path):
    with closing(SqliteStore(path)) as store:
        member = GroupMember("m", ("t",), 45_000, Isolation.READ_COMMITTED)
        value = {"positions": []}
        group = groups.join(Group(first_counts={"id": 2}), member)
        store.put(f"{CONSUMERS}g", with_group(value, group), 0)
        store.put(f"{CONSUMERS}named", {"positions": [], "instance": "i"}, 0)
        distrust_logs(store)
        found = store.get(f"{CONSUMERS}g")
        assert found is not None
        assert group_of(found.value) == Group(1, (), {"id": 2})
        named = store.get(f"{CONSUMERS}named")
        assert named is not None
        assert named.value == {"positions": [], "instance": "i"}


def test_a_backup_of_another_cluster_and_another_file_are_refused(path, tmp_path):
    for name, cluster in ((path, "mine"), (tmp_path / "other", "other")):
        store = SqliteStore(name)
        store.put(CLUSTER, {"id": cluster}, 0)
        store.close()
    with pytest.raises(WrongCluster, match="cluster mine, the backup is of other"):
        put_back(tmp_path / "other", path, force=True)
    (tmp_path / "text").write_text("certainly no database" * 100)
    for wrong in (tmp_path / "text", tmp_path / "missing"):
        with pytest.raises(InvalidRequest, match="is not a metadata store"):
            put_back(wrong, path, force=True)
        with pytest.raises(InvalidRequest, match="is not a metadata store"):
            back_up(wrong, tmp_path / "copy")
    store = SqliteStore(path)
    assert store.get(CLUSTER).value == {"id": "mine"}
    store.close()


def test_no_backup_is_restored_while_a_process_opens_or_closes_the_store(path, tmp_path):
    store, copy = SqliteStore(path), tmp_path / "copy"
    store.put(CLUSTER, {"id": "c"}, 0)
    back_up(path, copy)
    with pytest.raises(InvalidRequest, match="starting or ending"):
        put_back(copy, path, force=True)
    store.close()
    put_back(copy, path, force=True)


def test_a_store_is_written_back_after_a_process_died_while_it_did_that(path):
    store = SqliteStore(path)
    store.put("k", {}, 0)
    path.unlink()
    store._place._write_note((1, 1), store._place._opened)  # and no file got that name
    store.write_back()
    assert store.lost is None
    assert store.put("l", {}, 0) is not None
    store.close()


def test_a_path_with_full_in_it_is_no_full_disk(tmp_path):
    path = tmp_path / "full"
    path.mkdir()
    with pytest.raises(StorageFailure) as caught:
        SqliteStore(path)
    assert caught.value.code == StorageFailure.code
