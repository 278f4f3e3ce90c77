"""The metadata store for brokers on one host: one SQLite file, one short transaction a change.

Processes that change, open or close the file take turns (``store_files``). SQLite never waits here:
it reports a busy file immediately, and this module waits. SQLite's own waiting is not fair, and
does not happen at all if a read lock becomes a write lock, as when a new file gets its WAL.

Changes that wait in one process share a commit: its fsync is nearly the whole cost of a change.
Each remains a separate compare-and-set. Reads use a separate connection and wait for no change. The
table ``deleted`` has the deleted keys and their revisions, except those up to the revision
``forgotten``. The file's ``user_version`` is the form of its tables and records: a store in any
other form is refused.

The file may be deleted, replaced or overwritten while brokers have it open. Each poll and each
change checks which file is at the path, and no process opens a different file than the others have
open (``store_files``):

============  =================  ========  ======================================================
state         file at the path   changes   how it gets back in place
============  =================  ========  ======================================================
in place      the open one       accepted
deleted       none               refused   it is moved back, or a broker writes it back
replaced      another one        refused   it is moved back
written back  the copy           refused   the next look opens the copy
overwritten   the open one with  refused   a backup is put back after all brokers have ended
              other content
============  =================  ========  ======================================================

Reads continue in each state but the last. A close in the second or third keeps a copy (``.saved``).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from spark_stream.cluster.stores.store import (
    FORM,
    Changes,
    Delete,
    Put,
    StoreRecord,
    check_distinct,
    end_of,
)
from spark_stream.cluster.stores.store_files import (
    StorePlace,
    WriterQueue,
    check_header,
    new_number,
    save_lost,
)
from spark_stream.environment import Clock, SystemClock
from spark_stream.errors import (
    IsologError,
    MetadataLost,
    MetadataUnavailable,
    NotALogDirectory,
    StorageFailure,
    UnsupportedFormat,
)
from spark_stream.loggers import logger_of
from spark_stream.operating_system import FolderWatch

logger = logger_of(__name__)

_A = TypeVar("_A")

_SCHEMA: Final = (
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "pragma fullfsync = on",  # for macOS (decision 206); SQLite ignores it elsewhere
    "create table if not exists record ("
    " key text primary key, value text not null, version integer not null) without rowid",
    "create table if not exists counter ("
    " name text primary key, value integer not null) without rowid",
    "insert or ignore into counter values ('version', 0), ('forgotten', 0)",
    "create index if not exists record_version on record (version)",
    "create table if not exists deleted (revision integer primary key, key text not null)",
)
_TABLES: Final = "select name from sqlite_master where type = 'table'"
_REVISION: Final = "version"  # names of counters
_FORGOTTEN: Final = "forgotten"
_NUMBER: Final = "pragma application_id"
_COUNTER: Final = "select value from counter where name = ?"
_COUNT: Final = "update counter set value = ? where name = ?"
_INSERT: Final = "insert or ignore into record values (?, ?, ?)"
_UPDATE: Final = "update record set value = ?, version = ? where key = ? and version = ?"
_DELETE: Final = "delete from record where key = ? and version = ?"
_NOTE_DELETED: Final = "insert into deleted values (?, ?)"
_FIRST_DELETED: Final = "select min(revision) from deleted"
_FORGET_DELETED: Final = "delete from deleted where revision <= ?"
_CHANGED: Final = (
    "select 'counter', name, null, value from counter"
    " union all select 'deleted', key, null, revision from deleted where revision > ? and ({keys})"
    " union all select 'record', key, value, version from record where version > ? and ({keys})"
)
_STAMP: Final = "pragma data_version"  # changes whenever somebody else changes the file
DELETED_KEPT: Final = 100_000
"""The number of changes for which a deletion is kept. A later request reads all records again."""
_WAIT_S: Final = 10.0  # no change takes this long: a process that holds the file longer has stopped
_CLOSE_WAIT_S: Final = 1.0
_READ_PAUSE_S: Final = 0.001


class _Waiting(Struct, Generic[_A]):
    """A change that a thread waits for: its function of connection and revision, and its outcome.

    Each answer that is true takes one revision.
    """

    change: Callable[[sqlite3.Connection, int], Sequence[_A]]
    answers: Sequence[_A] | None = None
    error: BaseException | None = None


_ABANDONED: Final[list[sqlite3.Connection]] = []
"""Connections of overwritten stores. The garbage collector would close them."""


class SqliteStore:
    """Versions come from one counter: a record that is deleted and created again repeats none."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._named = _Named(path)
        self._clock = clock or SystemClock()
        self._reading = threading.Lock()
        self._committing = threading.Lock()
        self._waiting: deque[_Waiting[Any]] = deque()
        self._closed = False
        # SQLite's stamp and the revision at the last look, and the answer until the stamp changes.
        self._unchanged: tuple[tuple[int], int] | None = None
        self._nothing = Changes(0, {}, complete=True)
        with ExitStack() as undo, self._named:
            check_header(path)  # before anything is made beside a file that is not ours
            self._place = StorePlace(path)
            undo.callback(self._place.close)
            with self._place.opening():
                self._writers = WriterQueue(path.with_name(path.name + "-turns"), self._clock)
                undo.callback(self._writers.close)
                self._writer = _connected(path)
                undo.callback(self._writer.close)
                with self._turn(self._prepare):
                    self._reader = _connected(path)
                    # SQLite opens its log by name with the first read: the name may not exist
                    # later.
                    self._reader.execute(_COUNTER, (_REVISION,)).fetchone()
                    (self._place.number,) = self._reader.execute(_NUMBER).fetchone()
            undo.pop_all()
        self._watch = FolderWatch(path.parent, path.name)
        self._looking = threading.Lock()
        self._lost: MetadataLost | None = None

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        rows = self._read("select key, value, version from record where key = ?", key)
        return rows[0] if rows else None

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        query = "select key, value, version from record where key >= ?"
        end = end_of(prefix)
        if end is None:
            return self._read(f"{query} order by key", prefix)
        return self._read(f"{query} and key < ? order by key", prefix, end)

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        return self.put_many([Put(key, value, expected)])[0]

    def delete(self, key: str, expected: int) -> bool:
        return self.delete_many([Delete(key, expected)])[0]

    def put_many(self, puts: Sequence[Put]) -> Sequence[int | None]:
        check_distinct(puts)
        texts = [json.dumps(each.value, separators=(",", ":")) for each in puts]

        def change(connection: sqlite3.Connection, revision: int) -> list[int | None]:
            versions: list[int | None] = []
            for put, text in zip(puts, texts, strict=True):
                following = revision + 1
                if put.expected == 0:
                    done = connection.execute(_INSERT, (put.key, text, following))
                else:
                    done = connection.execute(_UPDATE, (text, following, put.key, put.expected))
                revision += done.rowcount
                versions.append(following if done.rowcount else None)
            return versions

        return self._change(_Waiting(change))

    def delete_many(self, deletes: Sequence[Delete]) -> Sequence[bool]:
        check_distinct(deletes)

        def change(connection: sqlite3.Connection, revision: int) -> list[bool]:
            deleted = []
            for key, expected in deletes:
                done = connection.execute(_DELETE, (key, expected)).rowcount == 1
                if done:
                    revision += 1
                    connection.execute(_NOTE_DELETED, (revision, key))
                deleted.append(done)
            return deleted

        return self._change(_Waiting(change))

    def changes(
        self,
        since: int,
        prefixes: Sequence[str] = ("",),
        *,
        fresh: bool = True,
        known: bool = False,
    ) -> Changes:
        # Every broker calls this many times a second, mostly without a change: it has to be fast.
        if self._lost is not None or not self._place.is_unchanged():
            with self._named:
                self._look()
            if self._place.is_overwritten:
                return self._none_since(since)
        with self._reading:
            try:
                stamp = self._reader.execute(_STAMP).fetchone()
            except sqlite3.Error:
                stamp = None  # the code below reports the error, or waits for a busy file
            if stamp is not None and self._unchanged == (stamp, since):
                return self._nothing
        with self._named, self._reading:
            (stamp,) = self._fetch(_STAMP)
            changes = self._changes_since(since, prefixes)
            if not self._place.is_unchanged():
                self._look(takes=False)
            if self._place.is_overwritten:
                return self._none_since(since)
            # A change between the two reads has another stamp, so the next call reads again.
            self._unchanged = (stamp, changes.revision)
            self._nothing = Changes(changes.revision, {}, complete=changes.revision == 0)
            return changes

    def await_change(self, timeout_s: float) -> None:
        self._watch.wait(timeout_s)  # each commit changes the times of the write-ahead log

    def stop_waiting(self) -> None:
        self._watch.wake()

    def _none_since(self, since: int) -> Changes:
        """Return no changes: a read of an overwritten file may mix the content of two files."""
        if since == 0:
            self._check_in_place()
        return Changes(since, {}, complete=False)

    def _changes_since(self, since: int, prefixes: Sequence[str]) -> Changes:
        condition, bounds = _within(prefixes)
        query = _CHANGED.format(keys=condition)
        rows = self._fetch(query, since, *bounds, since, *bounds)
        counters = {name: number for kind, name, _, number in rows if kind == "counter"}
        complete = since == 0 or not counters[_FORGOTTEN] <= since <= counters[_REVISION]
        if complete:
            rows = self._fetch(query, -1, *bounds, -1, *bounds)
            counters = {name: number for kind, name, _, number in rows if kind == "counter"}
        changed: dict[str, StoreRecord | None] = {}
        if not complete:
            changed = {key: None for kind, key, _, _ in rows if kind == "deleted"}
        for kind, key, value, version in rows:
            if kind == "record":
                changed[key] = StoreRecord(key, json.loads(value), version)
        return Changes(counters[_REVISION], changed, complete)

    def close(self) -> None:
        with self._named:
            if self._closed:
                return
            self._closed = True
            self._watch.close()
            self._look(takes=False)
            if self._place.is_overwritten:
                # Closing the connections would write their log into the file's new content.
                _ABANDONED.extend((self._reader, self._writer))
                self._place.close()
                return
            if self._lost is not None:
                with self._reading:
                    save_lost(self._reader, self._path)
            # A close takes its turn: the last one removes SQLite's write-ahead log.
            in_turn = self._writers.take(lambda: True, _CLOSE_WAIT_S)
            with self._reading:
                self._reader.close()
            self._writer.close()
            if in_turn:  # else others wait in line, and its file must stay open
                self._writers.close()
                self._writers.end()
            self._place.close()

    @property
    def lost(self) -> MetadataLost | None:
        """The error of refused changes: the file at the path is not the open one. None if it is."""
        return self._lost

    @property
    def mark(self) -> None:
        """None: a copy of the file has another number, which ``store_files`` compares."""

    def replace_identity(self) -> None:
        """Do nothing: a restored file has another number."""

    def write_back(self) -> None:
        """Write the open database to its path, where the file was deleted. All stores then open it.

        Raises:
            InvalidRequest: the file was not deleted, or there is another file.
            MetadataLost: the file was overwritten, or other brokers have another file open.
            StorageFailure: the open copy is damaged.
        """
        with self._named, self._turn(self._begin):  # excludes changes of the open file
            try:
                with self._reading:
                    self._place.write_back(self._reader)
            finally:
                self._writer.execute("rollback")
        logger.warning("metadata store %s: the open copy was written back", self._path)
        self._look()

    def _look(self, *, takes: bool = True) -> None:
        """Find out whether the open file is still the one at the path, or take its new copy."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            lost = self._place.look()
            if lost is None or (takes and self._take_copy()):
                if self._lost is not None:
                    logger.warning("the file of metadata store %s is at its path again", self._path)
                self._lost = None
            elif self._lost is None or lost.message != self._lost.message:
                self._lost = lost
                logger.error("changes of metadata are refused: %s", self._lost)
        finally:
            self._looking.release()

    def _take_copy(self) -> bool:
        """Open the file at the path, if it was written back from the open one."""
        if not self._place.is_copy():
            return False
        with ExitStack() as undo:
            fresh = [_connected(self._path) for _ in range(2)]
            try:
                for each in fresh:
                    undo.callback(each.close)
                    each.execute(_SCHEMA[1])  # a setting of the connection, not of the file
                    each.execute(_COUNTER, (_REVISION,)).fetchone()
            except sqlite3.Error:  # another process has the file: the next look tries again
                return False
            if not self._writers.take(lambda: True, _WAIT_S):
                return False
            try:
                if not self._place.is_copy():  # the copy went away while this waited
                    return False
                with self._reading:
                    # SQLite leaves the write-ahead log at the path alone: the file has moved.
                    self._reader.close()
                    self._writer.close()
                    self._reader, self._writer = fresh
                    self._place.take_copy()
                    self._unchanged = None
                undo.pop_all()
            finally:
                self._writers.end()
        return True

    def _check_in_place(self) -> None:
        """Raise MetadataLost if the file at the path is not the open one: changes would be lost."""
        if not self._place.is_unchanged():
            self._look(takes=False)  # taking a copy needs a turn, which the caller may hold
            if self._lost is not None:
                raise self._lost.again()
            if not self._place.is_there():  # another thread is looking into it
                raise MetadataLost(f"the metadata store {self._path} is not at its path")

    def _read(self, statement: str, *arguments: str) -> Sequence[StoreRecord]:
        with self._named:
            with self._reading:
                rows = self._fetch(statement, *arguments)
            if self._place.is_overwritten:
                self._check_in_place()
            return [
                StoreRecord(str(key), json.loads(value), int(version))
                for key, value, version in rows
            ]

    def _fetch(self, statement: str, *arguments: str | int) -> Sequence[tuple[Any, ...]]:
        deadline = None
        while True:
            try:
                return self._reader.execute(statement, arguments).fetchall()
            except sqlite3.OperationalError as error:  # somebody opens or closes the file
                if not _is_busy(error):
                    raise
            now = self._clock.monotonic()
            deadline = deadline or now + _WAIT_S
            if now > deadline:
                raise self._held_too_long()
            time.sleep(_READ_PAUSE_S)

    def _change(self, mine: _Waiting[_A]) -> Sequence[_A]:
        """Queue a change, and wait for its commit. Return its answers.

        The first thread that gets its turn commits all queued changes together.
        """
        if self._lost is not None:  # brokers retry all the time: this costs no turn in the line
            with self._named:
                self._check_in_place()
        self._waiting.append(mine)
        with self._committing:
            if mine.answers is None and mine.error is None:
                self._commit_all([self._waiting.popleft() for _ in range(len(self._waiting))])
        if mine.error is not None:
            raise mine.error.again() if isinstance(mine.error, IsologError) else mine.error
        assert mine.answers is not None
        return mine.answers

    def _commit_all(self, group: Sequence[_Waiting[Any]]) -> None:
        """Carry out the changes together. One by one if one of them is at fault."""
        try:
            self._commit(group)
        except BaseException as error:
            # All share trouble with the disk or the lock. Anything else is the fault of one change.
            cause = error.__cause__ if isinstance(error, IsologError) else error
            shared = not isinstance(cause, Exception) or isinstance(cause, (sqlite3.Error, OSError))
            for each in group:
                if shared or len(group) == 1:
                    each.error = error
                else:
                    self._commit_all([each])

    def _commit(self, group: Sequence[_Waiting[Any]]) -> None:
        """Carry out all changes of the group, or none."""
        with self._named, self._turn(self._begin):
            try:
                self._check_in_place()
                before = revision = _counter(self._writer, _REVISION)
                answers = []
                for each in group:
                    answers.append(each.change(self._writer, revision))
                    revision += sum(1 for answer in answers[-1] if answer)
                if revision > before:
                    self._writer.execute(_COUNT, (revision, _REVISION))
                    _forget_deleted(self._writer, revision)
                if self._writer.in_transaction:
                    self._writer.execute("commit")
            except BaseException:
                if self._writer.in_transaction:  # SQLite itself ends it on a full disk
                    self._writer.execute("rollback")
                raise
        # SQLite shows a commit to others by a memory map, after its writes. No write reports that.
        with suppress(OSError):
            os.utime(f"{self._path}-wal")
        for each, done in zip(group, answers, strict=True):
            each.answers = done

    @contextmanager
    def _turn(self, attempt: Callable[[], bool]) -> Iterator[None]:
        if not self._writers.take(attempt, _WAIT_S):
            raise self._held_too_long()
        try:
            yield
        finally:
            self._writers.end()

    def _begin(self) -> bool:
        return self._try_execute("begin immediate")

    def _prepare(self) -> bool:
        try:
            tables = {str(name) for (name,) in self._writer.execute(_TABLES)}
            (form,) = self._writer.execute("pragma user_version").fetchone()
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                return False
            raise
        if tables and "record" not in tables:
            raise NotALogDirectory(
                f"metadata store {self._path}: it is another program's database (it has a table"
                f" {min(tables)!r})",
                hint="Name a new file, or one that isolog made.",
                path=str(self._path),
            )
        if tables and form != FORM:
            raise UnsupportedFormat(
                f"metadata store {self._path} has format {form}; this release reads {FORM}",
                path=str(self._path),
            )
        # These come before the tables, and before there is a log: a process may end in between.
        first = () if tables else (f"pragma user_version = {FORM}", f"{_NUMBER} = {new_number()}")
        return all(self._try_execute(statement) for statement in (*first, *_SCHEMA))

    def _try_execute(self, statement: str) -> bool:
        """Execute the statement. False, with nothing done, if another process has the file."""
        try:
            self._writer.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                return False
            raise
        return True

    def _held_too_long(self) -> StorageFailure:
        return StorageFailure(
            f"metadata store {self._path}: another process has held it for {_WAIT_S:g} s",
            path=str(self._path),
            hint="A broker on this store may be stopped: continue or end it, then try again.",
        )


class _Named:
    """A block whose errors of SQLite and of files become those of a metadata store.

    A store has one such object for all calls and threads. It has no state.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (sqlite3.Error, ValueError, OSError)):
            text, path = f"metadata store {self._path}: {error}", str(self._path)
            if _is_full(error) or _is_read_only(error):
                raise MetadataUnavailable(
                    text, hint=_hint(error), path=path, takes_no_changes=True
                ) from error
            raise StorageFailure(text, hint=_hint(error), path=path) from error


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _is_read_only(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.EROFS
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def _counter(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(_COUNTER, (name,)).fetchone()[0])


def _forget_deleted(connection: sqlite3.Connection, revision: int) -> None:
    """Remove old deletions once there are twice as many as promised, so that it acts rarely."""
    (first,) = connection.execute(_FIRST_DELETED).fetchone()
    if first is not None and revision - first >= 2 * DELETED_KEPT:
        forgotten = revision - DELETED_KEPT
        connection.execute(_FORGET_DELETED, (forgotten,))
        connection.execute(_COUNT, (forgotten, _FORGOTTEN))


def _within(prefixes: Sequence[str]) -> tuple[str, list[str]]:
    """Return the condition that a key has one of the prefixes, and its arguments.

    The ``+`` before ``key`` stops SQLite from using the index of keys: the index of versions
    leaves far fewer rows.
    """
    conditions, bounds = ["false"], list[str]()
    for prefix in prefixes:
        end = end_of(prefix)
        conditions.append("+key >= ?" if end is None else "(+key >= ? and +key < ?)")
        bounds += [prefix] if end is None else [prefix, end]
    return " or ".join(conditions), bounds


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _hint(error: Exception) -> str | None:
    """Return a hint, if the error class's own does not fit."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "The file is damaged, or not a store: restore it from a backup."
    if _is_full(error):
        return "Make room on the disk of the metadata store. Changes then continue."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or isinstance(error, OSError):
        return "Its folder must be there, and the broker must be allowed to write to it."
    return None
