"""Backups of a metadata store: a consistent copy while brokers run, and how one is put back.

The file's permissions decide who may copy it: a store has the cluster's secret, which no client may
get. So backups are made from the file and never travel over a connection.

**What a backup does not know.** Since it was made leaders may have changed, and replicas may have
left the ISR. A broker that leads by the backup may lack what another has acknowledged since. So a
backup that is put back trusts no log: it names all replicas of a partition, in a generation that no
broker has. As after a power cut, the partition waits until all its replicas have come back, and the
one with the longest log leads, in an epoch that is later than any in the logs
(``consistency.election``). Numbers of producers and transactions go on far above the backup's.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from spark_stream.cluster import brokers, partitions, vouching
from spark_stream.cluster.identity import CLUSTER
from spark_stream.cluster.numbers import NUMBERS
from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.cluster.store import Delete, Put, Record
from spark_stream.cluster.store_files import copy_database, sync_folder
from spark_stream.errors import InvalidRequest, StorageFailure, WrongCluster

STORE_NAME: Final = "metadata.sqlite"
"""The file of the store in a lone broker's directory."""

_PASSED_OVER: Final = 1_000_000_000
"""How many numbers a restore passes over: more than any cluster uses between two backups."""


def back_up(store: Path, target: Path, *, force: bool = False) -> None:
    """Write a consistent copy of the store, whose brokers may be running.

    Raises:
        InvalidRequest: there is no such store, or the target exists and ``force`` is false.
        StorageFailure: the store is damaged, or the target cannot be written.
    """
    store = store.resolve()
    _check_store(store)
    _check_free(target, force=force)
    fresh = _fresh(target)
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=rw", uri=True)) as source:
            copy_database(source, fresh)
        os.replace(fresh, target)
        sync_folder(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise StorageFailure(f"backup of {store} to {target}: {error}", path=str(store)) from error
    finally:
        _remove(fresh)


def put_back(backup: Path, store: Path, *, force: bool = False) -> None:
    """Put a backup in the place of the store, whose brokers have ended.

    Raises:
        InvalidRequest: brokers run on the store, the backup is none, or the store exists and
            ``force`` is false.
        WrongCluster: the store that is there is another cluster's.
    """
    store = store.resolve()  # as brokers do: what a link names is replaced, not the link
    _check_store(backup)
    running = running_brokers(store.parent / "leases")
    if running:
        raise InvalidRequest(
            f"brokers run on {store}: {', '.join(running)}",
            hint="Stop all of them first. If the file was deleted under them, `isolog cluster"
            " restore` without a file writes back what they have open.",
        )
    _check_free(store, force=force)
    fresh = _fresh(store)
    try:
        with closing(sqlite3.connect(backup)) as source:
            copy_database(source, fresh)
        restored = SqliteStore(fresh)
        try:
            _check_cluster(restored, store)
            distrust_logs(restored)
        finally:
            restored.close()
        for suffix in ("-wal", "-shm"):  # of the earlier file: they must not be applied to this one
            store.with_name(store.name + suffix).unlink(missing_ok=True)
        os.replace(fresh, store)
        sync_folder(store.parent)
    except (sqlite3.Error, OSError) as error:
        raise StorageFailure(f"restore of {backup} to {store}: {error}", path=str(store)) from error
    finally:
        _remove(fresh)


def running_brokers(folder: Path) -> list[str]:
    """Return the ids of the brokers whose processes hold their id's lock in the lease folder."""
    found = []
    for path in sorted(folder.glob("*.lock")):
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(path.stem)
            finally:
                os.close(descriptor)
    return found


def distrust_logs(store: SqliteStore) -> None:
    """Let no broker lead by what the store says: each has to show its log first."""
    nobody = f"restored-{secrets.token_hex(8)}"
    store.delete_many([Delete(each.key, each.version) for each in store.list(vouching.VOUCHING)])
    puts = [_changed(each, generation=nobody) for each in store.list(brokers.BROKERS)]
    for each in store.list(partitions.PARTITIONS):
        isr = [[broker, nobody] for broker in each.value["replicas"]]
        puts.append(_changed(each, leader=None, isr=isr))
    numbers = store.list(NUMBERS)
    puts += [_changed(each, next=int(each.value["next"]) + _PASSED_OVER) for each in numbers]
    store.put_many(puts)


def _changed(record: Record, **fields: Any) -> Put:
    return Put(record.key, dict(record.value) | fields, record.version)


def _check_cluster(restored: SqliteStore, store: Path) -> None:
    mine = restored.get(CLUSTER)
    if mine is None:
        raise InvalidRequest("the backup names no cluster: it is no backup of a metadata store")
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as there:
            row = there.execute(
                "select json_extract(value, '$.id') from record where key = ?", (CLUSTER,)
            ).fetchone()
    except sqlite3.Error:
        return  # it is missing or damaged: that is why a backup is put back
    if row is not None and row[0] != mine.value["id"]:
        raise WrongCluster(
            f"{store} is the store of cluster {row[0]}, the backup is of {mine.value['id']}",
            hint="Name the backup of this cluster, or another place.",
        )


def _check_store(path: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as found:
            found.execute("select count(*) from record").fetchone()
    except sqlite3.Error as error:
        raise InvalidRequest(
            f"{path} is no metadata store: {error}",
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


def _fresh(path: Path) -> Path:
    fresh = path.with_name(path.name + ".new")
    _remove(fresh)
    return fresh


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-turns"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
