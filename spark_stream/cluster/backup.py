"""Backups of a metadata store, restores, and moves to another store.

The file's permissions decide about copies: a store has the cluster's secret, which no client may
get. So backups are made from the file and are never sent over a connection.

**A backup is older than the logs.** Since the backup, leaders may have changed, and replicas may
have left the ISR. A broker that leads by the backup may lack records that another broker
acknowledged later. So a backup trusts no log: it names all replicas of a partition as members, in a
generation that no broker has. As after a power cut, the partition waits until all its replicas have
come back, and the one with the longest log leads, in an epoch that is later than any in the logs
(``consistency.control.election``). Numbers of producers and transactions continue far above the
store's, and a transactional id gets a new producer id: the logs may have later epochs of its old
one.

**Moves.** The metadata of a stopped cluster moves to another store. A move may stop anywhere, and
is then run again. Order: the source gets a mark, so that no broker starts on it any more. The
target gets one, because it is not complete. Records are copied and compared. The source gets a mark
of the finished move, and only then the target's mark is removed: at no moment can brokers start on
both.

A broker looks for a mark after it has locked its id, and a move looks for locked ids after it has
written the mark. So one of them sees the other.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.cluster import brokers, generations, partitions, transactions
from spark_stream.cluster.brokers import CLUSTER
from spark_stream.cluster.consumers import CONSUMERS, READERS, group_of, with_group
from spark_stream.cluster.stores.backends import Backend
from spark_stream.cluster.stores.lease_files import running_brokers
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import Delete, MetadataStore, Put, StoreRecord
from spark_stream.cluster.stores.store_files import (
    StorePlace,
    copy_database,
    new_number,
    sync_folder,
)
from spark_stream.cluster.transactions import NUMBERS
from spark_stream.errors import InvalidRequest, StorageFailure, WrongCluster

STORE_NAME: Final = "metadata.sqlite"
"""The file of the store in a lone broker's directory."""

_MARK: Final = "moved"
_PASSED_OVER: Final = 1_000_000_000
"""The numbers that a copy skips, more than any cluster uses between two backups."""


def back_up(store: Path, target: Path, *, force: bool = False) -> None:
    """Write a consistent copy of the store, whose brokers may be running.

    Raises:
        InvalidRequest: there is no such store, or the target exists and ``force`` is false.
        MetadataLost: running brokers have another file open, or the log is that of another file.
        StorageFailure: the store is damaged, or the target cannot be written.
    """
    store = store.resolve()
    try:
        if store.exists():
            _check_open(store)
        _check_store(store)
        _check_free(target, force=force)
        with _distrusting_copy(store, target) as (_, fresh):
            os.replace(fresh, target)
        sync_folder(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise StorageFailure(f"backup of {store} to {target}: {error}", path=str(store)) from error


def back_up_from(source: Backend, target: Path, *, force: bool = False) -> None:
    """Write a consistent copy of a store that is no file. Otherwise as :func:`back_up`."""
    _check_free(target, force=force)
    try:
        with _distrusting_copy(source, target) as (_, fresh):
            os.replace(fresh, target)
        sync_folder(target.parent)
    except OSError as error:
        raise StorageFailure(f"backup of {source} to {target}: {error}") from error


def put_back_into(backup: Path, target: Backend, *, force: bool = False) -> None:
    """Restore a backup to a store that is no file. Otherwise as :func:`put_back`."""
    _check_store(backup)
    with (
        tempfile.TemporaryDirectory() as folder,
        _distrusting_copy(backup, Path(folder) / STORE_NAME) as (restored, fresh),
    ):
        if not restored:
            raise InvalidRequest("the backup names no cluster: it is not a backup")
        with (
            replacing(target, str(backup), str(restored["id"]), force=force) as store,
            closing(SqliteStore(fresh)) as copy,
        ):
            copy_records(copy, store)


def put_back(backup: Path, store: Path, *, force: bool = False) -> None:
    """Restore a backup to the place of the store, whose brokers have stopped.

    Raises:
        InvalidRequest: brokers run on the store, ``backup`` is not a backup, or the store exists
            and ``force`` is false.
        WrongCluster: the existing store belongs to another cluster.
    """
    store = store.resolve()  # as brokers do: the target of a link is replaced, not the link
    _check_store(backup)
    _check_free(store, force=force)
    try:
        with (
            _closed_to_brokers(store),
            _distrusting_copy(backup, store) as (restored, fresh),
        ):
            _check_cluster(restored, store)
            for suffix in ("-wal", "-shm"):  # of the earlier file: not to be applied to this one
                store.with_name(store.name + suffix).unlink(missing_ok=True)
            os.replace(fresh, store)
        sync_folder(store.parent)
    except (sqlite3.Error, OSError) as error:
        raise StorageFailure(f"restore of {backup} to {store}: {error}", path=str(store)) from error


@contextmanager
def _closed_to_brokers(store: Path) -> Iterator[None]:
    """Keep brokers from opening the store within the block.

    Raises:
        InvalidRequest: brokers run on it.
    """
    with closing(StorePlace(store)) as place:
        is_closed = place.keep_closed()
        running = running_brokers(store.parent / "leases")
        if running or not is_closed:
            raise InvalidRequest(
                f"brokers run on {store}: {', '.join(running) or 'one that is starting or ending'}",
                hint="Stop all of them first. If the file was deleted under them, `isolog cluster"
                " restore` without a file writes back what they have open.",
            )
        yield


@contextmanager
def _distrusting_copy(
    source: Path | Backend, target: Path
) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """Yield the cluster's record, and a copy of a store that trusts no log. Then clean up.

    The copy is in a temporary folder beside the target, with all files that an open store has.
    """
    folder = target.with_name(target.name + ".new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    fresh = folder / target.name
    try:
        if isinstance(source, Path):
            _copy_file(source, fresh)
        else:
            _copy_records_of(source, fresh)
        fresh.chmod(0o600)  # it has the cluster's secret
        with closing(SqliteStore(fresh)) as store:
            distrust_logs(store)
            cluster = store.get(CLUSTER)
        yield {} if cluster is None else cluster.value, fresh
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_file(source: Path, fresh: Path) -> None:
    with closing(_connected(source)) as found:
        copy_database(found, fresh)
    with closing(_connected(fresh)) as copy:
        copy.execute(f"pragma application_id = {new_number()}")


def _copy_records_of(source: Backend, fresh: Path) -> None:
    with (
        closing(source.open_store(accepts_loss=True)) as found,
        closing(SqliteStore(fresh)) as copy,
    ):
        if found.get(CLUSTER) is None:
            raise InvalidRequest(f"{source} has no cluster's metadata: nothing to copy")
        copy_records(found, copy)


def distrust_logs(store: SqliteStore) -> None:
    """Remove all leaders and generations, so that each broker must present its log first.

    Members of groups have to join again: they may have later epochs than the store. The sessions of
    readers are removed, and running readers renew theirs.
    """
    nobody = f"restored-{secrets.token_hex(8)}"
    store.delete_many(
        [Delete(each.key, each.version) for each in store.list(generations.GENERATIONS)]
    )
    store.delete_many([Delete(each.key, each.version) for each in store.list(READERS)])
    puts = [_changed(each, generation=nobody) for each in store.list(brokers.BROKERS)]
    for each in store.list(partitions.PARTITIONS):
        isr = [[broker, nobody] for broker in each.value["replicas"]]
        puts.append(_changed(each, leader=None, isr=isr))
    restored = {"is_restored": True, "reserved": -1}
    puts += [_changed(each, **restored) for each in store.list(transactions.PREFIX)]
    for each in store.list(CONSUMERS):
        if (group := group_of(each.value)) is not None:
            left = with_group(each.value, replace(group, members=()))
            puts.append(Put(each.key, left, each.version))
    numbers = store.list(NUMBERS)
    puts += [_changed(each, next=int(each.value["next"]) + _PASSED_OVER) for each in numbers]
    store.put_many(puts)


def _changed(record: StoreRecord, **fields: Any) -> Put:
    return Put(record.key, dict(record.value) | fields, record.version)


def _check_open(store: Path) -> None:
    if (store.parent / "leases").exists():
        with closing(StorePlace(store)) as place:
            place.check_open()


def _check_cluster(mine: Mapping[str, Any], store: Path) -> None:
    if not mine:
        raise InvalidRequest("the backup names no cluster: it is not a backup of a metadata store")
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as there:
            row = there.execute(
                "select json_extract(value, '$.id') from record where key = ?", (CLUSTER,)
            ).fetchone()
    except sqlite3.Error:
        return  # it is missing or damaged: the reason for this restore
    if row is not None and row[0] != mine["id"]:
        raise WrongCluster(
            f"{store} is the store of cluster {row[0]}, the backup is of {mine['id']}",
            hint="Name the backup of this cluster, or another place.",
        )


def _check_store(path: Path) -> None:
    try:
        with closing(_connected(path)) as found:
            found.execute("select count(*) from record").fetchone()
    except sqlite3.Error as error:
        raise InvalidRequest(
            f"{path} is not a metadata store: {error}",
            hint="Name a file that `isolog cluster backup` wrote, or a broker's `metadata`.",
            path=str(path),
        ) from None


def _check_free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise InvalidRequest(
            f"{path} exists",
            hint="Name another file, move it away, or give --force to replace it.",
            path=str(path),
        )


def _connected(path: Path) -> sqlite3.Connection:
    """Open a file that exists."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)


class MoveMark(Struct, frozen=True):
    """The mark of a move in both stores. ``done``: the move is finished."""

    source: str
    target: str
    done: bool = False


def check_not_moved(store: MetadataStore) -> None:
    """Check that brokers may use the store. To be called once the broker's id is locked.

    Raises:
        WrongCluster: The store's records were moved away, or are not complete yet.
    """
    mark = _OwnMark(store).before
    if mark is None:
        return
    if mark.done:
        raise WrongCluster(
            f"the metadata of this cluster was moved from {mark.source} to {mark.target}",
            hint=f"Start the brokers with --metadata {mark.target}.",
        )
    raise WrongCluster(
        f"the metadata of this cluster is being moved from {mark.source} to {mark.target}",
        hint="Run `isolog cluster migrate-metadata`, or `restore`, again, to its end. Or give an"
        f" unfinished move up: `isolog cluster migrate-metadata --cancel {mark.source}`.",
    )


def migrate(source: Backend, target: Backend) -> int:
    """Move a cluster's metadata. Return the number of its records.

    Raises:
        InvalidRequest: there is no cluster in the source, or it was moved to another place. Or
            brokers run on one of them, or the target is in use.
        WrongCluster: the target is the store of another cluster.
        StorageFailure: a store failed, or the copy differs. The move can be run again.
    """
    if not source.exists():
        raise InvalidRequest(f"there is no metadata store {source}")
    with (
        closing(source.open_store()) as old,
        closing(target.open_store(accepts_loss=True)) as new,
    ):
        cluster = old.get(CLUSTER)
        if cluster is None:
            raise InvalidRequest(f"{source} has no cluster's metadata: nothing to move")
        move = MoveMark(str(source), str(target))
        mine, theirs = _OwnMark(old), _OwnMark(new)
        before = mine.before
        is_done = before is not None and before.done
        if before is not None and is_done and before.target != move.target:
            raise InvalidRequest(
                f"the metadata was moved from {source} to {before.target} already",
                hint=f"Move the metadata from {before.target}.",
            )
        if is_done and theirs.before is None:
            return len(_records(new))
        _check_same_cluster(new, move.target, str(cluster.value["id"]))
        _check_replaceable(new, theirs.before, move)
        if not is_done:
            mine.write(move)
            _check_stopped(source, mine)
        theirs.write(move)
        _check_stopped(target, theirs)
        copy_records(old, new)
        if not is_done:
            mine.write(MoveMark(move.source, move.target, done=True))
        new.replace_identity()
        theirs.remove()
        return len(_records(new))


def cancel(source: Backend) -> None:
    """Cancel an unfinished move, so that brokers may start on its source again.

    Raises:
        InvalidRequest: no move is unfinished.
    """
    if not source.exists():
        raise InvalidRequest(f"there is no metadata store {source}")
    with closing(source.open_store()) as store:
        mine = _OwnMark(store)
        mark = mine.before
        if mark is None or mark.done or mark.source != str(source):
            raise InvalidRequest(
                f"no move from {source} is unfinished",
                hint=f"Its mark says: from {mark.source} to {mark.target}." if mark else None,
            )
        mine.remove()


@contextmanager
def replacing(
    target: Backend, source: str, cluster_id: str, *, force: bool
) -> Iterator[MetadataStore]:
    """Yield the open target, on which no broker can start before the block ends.

    ``force``: it may have records of the same cluster.

    Raises: as :func:`migrate`.
    """
    with closing(target.open_store(accepts_loss=True)) as store:
        move, theirs = MoveMark(source, str(target)), _OwnMark(store)
        _check_same_cluster(store, move.target, cluster_id)
        if not force:
            _check_replaceable(store, theirs.before, move)
        theirs.write(move)
        _check_stopped(target, theirs)
        yield store
        store.replace_identity()
        theirs.remove()


def copy_records(source: MetadataStore, target: MetadataStore) -> None:
    """Make the target's records those of the source, and compare them.

    Raises:
        StorageFailure: a store failed, or the records differ, as somebody else has changed them.
    """
    wanted = _records(source)
    have = {each.key: each for each in target.list("") if each.key != _MARK}
    target.delete_many([Delete(key, have[key].version) for key in have.keys() - wanted.keys()])
    target.put_many(
        [
            Put(key, value, have[key].version if key in have else 0)
            for key, value in wanted.items()
            if key not in have or have[key].value != value
        ]
    )
    copied = _records(target)
    if copied != wanted:
        wrong = sorted(
            key for key in wanted.keys() | copied.keys() if wanted.get(key) != copied.get(key)
        )
        raise StorageFailure(
            f"{len(wrong)} records were not copied, such as {wrong[0]!r}", hint="Run it again."
        )


def _records(store: MetadataStore) -> dict[str, Any]:
    return {each.key: each.value for each in store.list("") if each.key != _MARK}


def _check_same_cluster(store: MetadataStore, name: str, cluster_id: str) -> None:
    found = store.get(CLUSTER)
    if found is not None and found.value["id"] != cluster_id:
        raise WrongCluster(
            f"{name} is the store of cluster {found.value['id']}, and this is cluster {cluster_id}",
            hint="Name an empty place.",
        )


def _check_replaceable(store: MetadataStore, mark: MoveMark | None, move: MoveMark) -> None:
    """Check that a store's records may be replaced.

    They may if there are none, if they are left from an interrupted run of this migration, or if an
    earlier migration copied them from here to the present source.

    Raises:
        InvalidRequest: The records may not be replaced.
    """
    if mark is None:
        if store.list(""):
            raise InvalidRequest(
                f"{move.target} is in use: it has the metadata of this cluster",
                hint="Name an empty place.",
            )
    elif mark != move and not (mark.done and mark.target == move.source):
        raise InvalidRequest(
            f"{move.target} belongs to another migration, from {mark.source} to {mark.target}",
            hint="Finish that one, or name an empty place.",
        )


def _check_stopped(backend: Backend, mark: _OwnMark) -> None:
    """Check that no broker runs on a store. If one does, withdraw the mark.

    Raises:
        InvalidRequest: one does.
    """
    with closing(backend.open_board()) as board:
        running = board.running()
    if running:
        mark.withdraw()
        raise InvalidRequest(
            f"brokers run on {backend}: {', '.join(running)}", hint="Stop all of them first."
        )


class _OwnMark:
    """The mark of a store, as one run of a move changes it. It detects the changes of others."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        record = store.get(_MARK)
        self.before = None if record is None else msgspec.convert(record.value, MoveMark)
        """The mark before this run."""
        self._version = 0 if record is None else record.version

    def write(self, mark: MoveMark) -> None:
        version = self._store.put(_MARK, msgspec.to_builtins(mark), self._version)
        if version is None:
            raise _interfered()
        self._version = version

    def remove(self) -> None:
        if not self._store.delete(_MARK, self._version):
            raise _interfered()

    def withdraw(self) -> None:
        """Restore the mark before this run."""
        if self.before is None:
            self.remove()
        else:
            self.write(self.before)


def _interfered() -> InvalidRequest:
    return InvalidRequest(
        "another command has moved this metadata, or has cancelled the move",
        hint="Check which store the brokers should use, and run the move again.",
    )
