"""The metadata store for brokers on one host: one SQLite file, one statement a change."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from spark_stream.cluster.store import Record
from spark_stream.errors import DiskFull, StorageFailure

_SCHEMA: Final = """
create table if not exists record (
    key text primary key,
    value text not null,
    version integer not null
) without rowid;
create table if not exists counter (name text primary key, value integer not null) without rowid;
insert or ignore into counter values ('version', 0);
"""
_BUSY_SECONDS: Final = 10.0


class SqliteStore:
    """Versions come from one counter: a record that is deleted and made anew repeats none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._named():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("pragma journal_mode = wal")
            self._connection.execute("pragma synchronous = full")
            self._connection.executescript(_SCHEMA)

    def get(self, key: str) -> Record | None:
        rows = self._read("select key, value, version from record where key = ?", key)
        return rows[0] if rows else None

    def list(self, prefix: str) -> Sequence[Record]:
        # Compared here: SQLite's text functions end a text at its first NUL.
        following = self._read(
            "select key, value, version from record where key >= ? order by key", prefix
        )
        return list(takewhile(lambda record: record.key.startswith(prefix), following))

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        text = json.dumps(value, separators=(",", ":"))
        with self._transaction() as connection:
            if self._version(key) != expected:
                return None
            version = self._next_version()
            connection.execute(
                "insert or replace into record values (?, ?, ?)", (key, text, version)
            )
            return version

    def delete(self, key: str, expected: int) -> bool:
        with self._transaction() as connection:
            if expected == 0 or self._version(key) != expected:
                return False
            connection.execute("delete from record where key = ?", (key,))
            return True

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _version(self, key: str) -> int:
        found = self._connection.execute("select version from record where key = ?", (key,))
        row = found.fetchone()
        return int(row[0]) if row else 0

    def _next_version(self) -> int:
        raised = self._connection.execute(
            "update counter set value = value + 1 where name = 'version' returning value"
        )
        return int(raised.fetchone()[0])

    def _read(self, statement: str, argument: str) -> Sequence[Record]:
        with self._named():
            with self._lock:
                rows = self._connection.execute(statement, (argument,)).fetchall()
            return [
                Record(str(key), json.loads(value), int(version)) for key, value, version in rows
            ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._named():
            self._connection.execute("begin immediate")
            try:
                yield self._connection
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:  # a full disk ends it by itself
                    self._connection.execute("rollback")
                raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            kind = DiskFull if "full" in str(error) else StorageFailure
            raise kind(f"metadata store {self._path}: {error}", path=str(self._path)) from error
