"""Backups of a metadata store: a consistent copy while brokers run, and how one is put back.

The file's permissions decide who may copy it: a store has the cluster's secret, which no client may
get. So backups are made from the file and never travel over a connection.

**What a backup does not know.** After it was made, leaders may have changed, and replicas may have
left the ISR. A broker that leads by the backup may lack what another has acknowledged since. So a
backup trusts no log, however it is put back: it names all replicas of a partition, in a generation
that no broker has. As after a power cut, the partition waits until all its replicas have come back,
and the one with the longest log leads, in an epoch that is later than any in the logs
(``consistency.control.election``). Numbers of producers and transactions go on far above the
store's, and a transactional id gets a new producer id: the logs may have later epochs of its old
one.
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

from msgspec.structs import replace

from spark_stream.cluster import brokers, generations, partitions, transactions
from spark_stream.cluster.consumers import CONSUMERS, READERS, group_of, with_group
from spark_stream.cluster.identity import CLUSTER
from spark_stream.cluster.migration import copy_records, replacing
from spark_stream.cluster.numbers import NUMBERS
from spark_stream.cluster.stores.backends import Backend
from spark_stream.cluster.stores.lease_files import running_brokers
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import Delete, Put, StoreRecord
from spark_stream.cluster.stores.store_files import (
    StorePlace,
    copy_database,
    new_number,
    sync_folder,
)
from spark_stream.errors import InvalidRequest, StorageFailure, WrongCluster

STORE_NAME: Final = "metadata.sqlite"
"""The file of the store in a lone broker's directory."""

_PASSED_OVER: Final = 1_000_000_000
"""How many numbers a copy passes over: more than any cluster uses between two backups."""


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
    """Write a copy of a store that is no file, as it is at one moment; as :func:`back_up`."""
    _check_free(target, force=force)
    try:
        with _distrusting_copy(source, target) as (_, fresh):
            os.replace(fresh, target)
        sync_folder(target.parent)
    except OSError as error:
        raise StorageFailure(f"backup of {source} to {target}: {error}") from error


def put_back_into(backup: Path, target: Backend, *, force: bool = False) -> None:
    """Put a backup in the place of a store that is no file; as :func:`put_back`."""
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
    """Put a backup in the place of the store, whose brokers have ended.

    Raises:
        InvalidRequest: brokers run on the store, ``backup`` is not a backup, or the store exists
            and ``force`` is false.
        WrongCluster: the existing store belongs to another cluster.
    """
    store = store.resolve()  # as brokers do: what a link names is replaced, not the link
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
    """Yield the cluster's record, and a copy of a store that trusts no log; then clean up.

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
    """Let no broker lead by what the store says: each has to show its log first.

    Members of groups have to join again: they may know of later epochs than the store does. The
    sessions of readers are removed: those that run renew theirs.
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
    puts += [_changed(each, is_restored=True) for each in store.list(transactions.PREFIX)]
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
        return  # it is missing or damaged: that is why a backup is put back
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
