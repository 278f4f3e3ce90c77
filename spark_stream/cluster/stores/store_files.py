"""The files of a metadata store: the open file, copies of it, and the queue of its writers.

Processes that have a store open share a lock (flock) on a note in the folder of the leases. The
first of them writes into the note which file is open: its device and inode, and the number that is
in the file's header (SQLite's ``application_id``). A process that comes later opens the store only
if the file at the path is that one: SQLite would apply the write-ahead log of the open file to any
other file of that name, and both would be damaged.

Each store and each backup has a unique number, and the note also has the revision that was last
seen in the file. So overwritten bytes of a file are detected: it has another number, or an older
revision. After a power failure only the number counts: the disk may have the note, and not the
pages that it was made of, whose changes are in the write-ahead log. If a store was deleted, one
broker writes it back and notes the copy, and the file that it was made of, so that the other
brokers take the copy, and no other file.

**Writers take turns**: threads of a process, and processes of a host. A simple lock is not fair: a
writer that releases it and takes it again immediately gets it before the waiting ones. Here all
writers stand in a line (:class:`WriterQueue`). In a process the line is a queue. Between processes
it has one place: the owner of the place waits for the resource itself, all others wait for the
place. So a writer that returns immediately has others before it. A process that is paused in that
place would block all others, though it does not have the resource: after a while they pass it.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from spark_stream.cluster.stores.lease_files import running_brokers
from spark_stream.environment import Clock
from spark_stream.errors import InvalidRequest, MetadataLost, StorageFailure
from spark_stream.loggers import logger_of
from spark_stream.operating_system import boot_id, lock, sync, unlock

logger = logger_of(__name__)

FileId = tuple[int, int]
"""A file, independent of its name: its device and its inode."""

_HEADER: Final = b"SQLite format 3\0"
_UNKNOWN: Final = -1
_NOTE_LENGTH: Final = 256  # after it comes the revision, which every process may write
_DIGITS: Final = 20
_OPENING_S: Final = 10.0
_ENDING_S: Final = 1.0  # how long a process that has another file open may take to end
_PAUSE_S: Final = 0.002
_READS: Final = 5  # a checkpoint may be under way while the file is read
_READ_PAUSE_S: Final = 0.01
_UNREAD: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
# A write takes 0.1 to 5 ms: the next in line looks often, the others look less often.
_NEXT_PAUSE_S: Final = 0.0002
_LINE_PAUSE_S: Final = 0.0005
_PATIENCE_S: Final = 0.25  # many times the duration of a write
_PASSING_S: Final = 1.0  # how long to pass a place that did not move, without waiting for it
_RESTORE: Final = "Stop all brokers and restore a backup: `isolog cluster restore FILE --force`."


def check_header(path: Path) -> None:
    """Refuse a file that is not a database, with the error that SQLite has for it."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_HEADER))
    except FileNotFoundError:
        return
    if not _HEADER.startswith(start):
        refused = sqlite3.DatabaseError("file is not a database")
        refused.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise refused


def new_number() -> int:
    """Return a number for the header of a new store or backup, which is not 0."""
    return secrets.randbelow(2**31 - 1) + 1


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Write a consistent copy to a new file, which only its owner may read, with an fsync.

    Raises:
        sqlite3.DatabaseError: The copy is damaged, and so is the source.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    with closing(_connected_to_file(target)) as copy:
        (found,) = copy.execute("pragma integrity_check(1)").fetchone()
    if found != "ok":
        damaged = sqlite3.DatabaseError(f"its copy is damaged: {found}")
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damaged
    descriptor = os.open(target, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def file_at(path: Path) -> FileId | None:
    """Return the file that a path names, without opening it: that would end SQLite's locks."""
    seen = _seen_at(path)
    return None if seen is None else seen[:2]


class StorePlace:
    """The place of a store that this process opens, and the note about the open file.

    For any thread. Only one thread at a time may call :meth:`look`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._leases = path.parent / "leases"
        self._leases.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = os.open(
            self._leases / f"{path.name}.open", os.O_RDWR | os.O_CREAT, 0o600
        )
        self._opened: FileId | None = None
        self._seen: tuple[int, int, int] | None = None
        self.number: int | None = None
        """The number of the open store, as its connections read it."""
        self._revision = -1
        self.is_overwritten = False

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Lock the note while the caller opens the file, if no process has another one open.

        The caller sets ``number``. The file itself does not have it after an incomplete checkpoint.

        Raises:
            MetadataLost: One has, or the write-ahead log at the path is that of another file.
            StorageFailure: Another process takes too long to open the store.
        """
        first = self._lock_note()
        if first:
            self._check_log()
        yield
        self._seen = _seen_at(self._path)
        self._opened = None if self._seen is None else self._seen[:2]
        _, self._revision = _content_of(self._path)
        if first:
            self._write_note(self._opened, None)
            self._write_revision()
            lock(self._descriptor, shared=True, waits=True)  # it was exclusive
        if not self._is_noted(self._opened):
            raise self._open_elsewhere()

    def close(self) -> None:
        """Release the note's lock: this process has closed the store."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def is_unchanged(self) -> bool:
        """Return whether the open file is at the path, and unchanged since the last look."""
        return not self.is_overwritten and _seen_at(self._path) == self._seen

    def is_there(self) -> bool:
        """Return whether the open file is at the path, and has not been found overwritten."""
        return not self.is_overwritten and file_at(self._path) == self._opened

    def look(self) -> MetadataLost | None:
        """Return the error of the file at the path, or None if it is the open one."""
        found = _seen_at(self._path)
        what, hint = "was deleted", None
        if found is not None and found[:2] != self._opened:
            what = "was replaced by another file"
        elif found is not None:
            if not self.is_overwritten and (found == self._seen or self._is_same_content()):
                self._seen = found
                return None
            if not self.is_overwritten:
                self.is_overwritten = True  # its log belongs to the earlier content of the file
                self._write_note(None, None)
            what, hint = "was overwritten", _RESTORE
        return MetadataLost(
            f"the metadata store {self._path} {what} while brokers had it open; they refuse"
            " changes until it is back",
            hint=hint,
            path=str(self._path),
        )

    def is_copy(self) -> bool:
        """Return whether the file at the path was written back from the open one."""
        return (
            not self.is_overwritten
            and self._is_noted(file_at(self._path))
            and self._is_noted_as_copied(self._opened)
        )

    def take_copy(self) -> None:
        """Adopt the file that is now at the path as the open store."""
        self._seen = _seen_at(self._path)
        self._opened = None if self._seen is None else self._seen[:2]

    def write_back(self, source: sqlite3.Connection) -> None:
        """Copy the open database, whose file was deleted, to its path, and note the copy.

        Raises:
            InvalidRequest: The file was not deleted, or another file is at the path.
            MetadataLost: The open file was overwritten, or is not the one that others have open.
            sqlite3.DatabaseError: The open database is damaged.
        """
        if self.is_overwritten or (found := file_at(self._path)) == self._opened:
            lost = self.look()
            if lost is not None:
                raise lost
            raise InvalidRequest(
                f"the file of the metadata store is still at {self._path}",
                hint="Only a store that was deleted under its brokers is written back.",
                already_done=True,
            )
        if found is not None:
            raise self._taken()
        # A process that died at the link below has noted its copy, which has no name now.
        is_noted = self._is_noted(self._opened) or self._is_noted_as_copied(self._opened)
        if not is_noted:
            raise self._open_elsewhere()
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.unlink(missing_ok=True)
        try:
            copy_database(source, fresh)
            for suffix in ("-wal", "-shm"):  # those of the open file have no names any more
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            self._write_note(file_at(fresh), self._opened)
            try:
                os.link(fresh, self._path)  # never replaces another file
            except BaseException:
                self._write_note(self._opened, None)
                raise
            sync_folder(self._path.parent)
        except FileExistsError:
            raise self._taken() from None
        finally:
            fresh.unlink(missing_ok=True)

    def check_open(self) -> None:
        """Check that the file may be opened for a moment.

        Raises:
            MetadataLost: Its write-ahead log is that of another file.
        """
        if self._lock_note():
            self._check_log()

    def keep_closed(self) -> bool:
        """Keep the store from being opened until :meth:`close`. Return False if it is open."""
        return lock(self._descriptor)

    def _lock_note(self) -> bool:
        """Lock the note. Return whether no other process has the store open."""
        started = time.monotonic()
        while time.monotonic() < started + _OPENING_S:
            if lock(self._descriptor):
                return True
            if lock(self._descriptor, shared=True):
                if self._is_noted(file_at(self._path)) and self._has_noted_content():
                    return False
                unlock(self._descriptor)
                if time.monotonic() > started + _ENDING_S:
                    raise self._open_elsewhere()
            time.sleep(_PAUSE_S)
        raise StorageFailure(
            f"metadata store {self._path}: another process has been opening it for"
            f" {_OPENING_S:g} s",
            path=str(self._path),
        )

    def _check_log(self) -> None:
        """Refuse a write-ahead log of another file. No other process must have the store open."""
        note = self._note()
        if not note or not self._log.exists() or not self._path.exists():
            return
        if note["file"] is None or not self._has_noted_content():
            raise MetadataLost(
                f"the metadata store {self._path} was replaced or overwritten; {self._log.name}"
                " beside it is of another file",
                hint="If the store is to be as it is now, remove the files beside it that end in"
                " -wal and -shm. To restore a backup: `isolog cluster restore FILE --force`.",
                path=str(self._path),
            )

    def _is_same_content(self) -> bool:
        """Return whether the file has the number that it had, and its revision has not fallen."""
        for _ in range(_READS):
            least = max(self._revision, self._noted_revision())  # it rises, so it is read first
            content = _content_of(self._path)
            if _matches(content, self.number, least):
                self._revision = max(content[1], least)
                self._write_revision()
                return self._note().get("file") is not None
            time.sleep(_READ_PAUSE_S)
        return False

    def _has_noted_content(self) -> bool:
        note, least = self._note(), self._noted_revision()  # it rises, so it is read first
        if note.get("boot") != boot_id():
            least = _UNKNOWN  # a power failure may have lost pages, and not the note about them
        return _matches(_content_of(self._path), note.get("number"), least)

    def _noted_revision(self) -> int:
        try:
            return int(os.pread(self._descriptor, _DIGITS, _NOTE_LENGTH))
        except ValueError:
            return -1

    def _write_revision(self) -> None:
        os.pwrite(self._descriptor, f"{self._revision:{_DIGITS}}".encode(), _NOTE_LENGTH)

    def _is_noted(self, file: FileId | None) -> bool:
        return file is not None and self._note().get("file") == list(file)

    def _is_noted_as_copied(self, file: FileId | None) -> bool:
        return file is not None and self._note().get("copy_of") == list(file)

    def _note(self) -> dict[str, Any]:
        try:
            found = json.loads(os.pread(self._descriptor, _NOTE_LENGTH, 0) or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write_note(self, file: FileId | None, copy_of: FileId | None) -> None:
        facts = {"file": file, "number": self.number, "copy_of": copy_of, "boot": boot_id()}
        note = json.dumps(facts)
        os.pwrite(self._descriptor, note.ljust(_NOTE_LENGTH).encode(), 0)

    def _open_elsewhere(self) -> MetadataLost:
        running = ", ".join(running_brokers(self._leases)) or "none with an id"
        overwritten = self._note().get("file") is None
        what = (
            "was overwritten while brokers had it open"
            if overwritten
            else "is not the file that running brokers have open"
        )
        return MetadataLost(
            f"the metadata store {self._path} {what}: {running}",
            hint=_RESTORE if overwritten else None,
            path=str(self._path),
        )

    def _taken(self) -> InvalidRequest:
        return InvalidRequest(
            f"another file is at the path of the metadata store {self._path}",
            hint="Move it away first, with the files beside it that end in -wal and -shm.",
            path=str(self._path),
        )


def save_lost(source: sqlite3.Connection, path: Path) -> None:
    """Keep a copy of an open database, whose file was deleted, beside its path."""
    saved = path.with_name(path.name + ".saved")
    fresh = path.with_name(f"{saved.name}-{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        copy_database(source, fresh)
        os.replace(fresh, saved)
    except (sqlite3.Error, OSError):
        logger.exception("metadata store %s is lost, and cannot be saved", path)
    else:
        logger.error("metadata store %s is lost; its copy is %s", path, saved)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)  # a part of a copy may have the cluster's secret


def _seen_at(path: Path) -> tuple[int, int, int] | None:
    """Return the file that a path names, and when it was changed."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _connected_to_file(path: Path) -> sqlite3.Connection:
    """Open the file itself to read, without its write-ahead log and without locks."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


def _content_of(path: Path) -> tuple[int | None, int]:
    """Return the number and the revision in the file itself, without its log.

    The number is None where the file has none, and the revision -1. Both are -1 where the file is
    not whole: a checkpoint beside a reader writes some pages and leaves others in the write-ahead
    log. (SQLite has to open the file: the end of any other descriptor of it would end its locks.)

    Raises:
        sqlite3.Error: The file could not be opened or read. This is no evidence of its content.
    """
    number, revision = None, _UNKNOWN
    try:
        with closing(_connected_to_file(path)) as file:
            (number,) = file.execute("pragma application_id").fetchone()
            found = file.execute("select value from counter where name = 'version'").fetchone()
            revision = _UNKNOWN if found is None else int(found[0])
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _UNREAD and path.exists():
            raise
        if code == sqlite3.SQLITE_CORRUPT and number is None:
            number = _UNKNOWN
    return number, revision


def _matches(content: tuple[int | None, int], number: int | None, least: int) -> bool:
    """Return whether a content may have this number, and this revision or a later one."""
    found, revision = content
    return found in (number, _UNKNOWN) and (revision == _UNKNOWN or revision >= least)


class ThreadLine:
    """A lock that threads get in the order of their requests."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout_s: float) -> bool:
        """Wait for the lock. Return whether the caller has got it."""
        with self._guard:
            if not self._held:
                self._held = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):
            return True
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
        return True  # it was handed over at the last moment

    def release(self) -> None:
        """Hand the lock to the thread that has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class WriterQueue:
    """The line of all writers of one file. From any thread. Every process has its own object.

    ``path`` is a file that only serves as the place in the line. The kernel frees it when the
    process that holds it dies.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._threads = ThreadLine()
        self._passes_until = 0.0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def take(self, attempt: Callable[[], bool], timeout_s: float) -> bool:
        """Wait in line, then call ``attempt`` until it is true. Return False if the time ran out.

        ``attempt`` tries to get the resource and does not wait for it. After True the caller has
        its turn and must call :meth:`end`. After False, or an error of ``attempt``, it has no turn.

        Raises:
            ValueError: the line is closed.
        """
        deadline = self._clock.monotonic() + timeout_s
        if not self._threads.acquire(timeout_s):
            return False
        taken = False
        try:
            if self._descriptor < 0:
                raise ValueError("it is closed")
            taken = self._stand_in_line(attempt, deadline)
        finally:
            if not taken:
                self._threads.release()
        return taken

    def end(self) -> None:
        """End the turn, and wake the next thread in line."""
        self._threads.release()

    def close(self) -> None:
        """Leave the queue. Call it while holding the turn, or without waiting threads."""
        os.close(self._descriptor)
        self._descriptor = -1

    def _stand_in_line(self, attempt: Callable[[], bool], deadline: float) -> bool:
        now = self._clock.monotonic()
        patience_s = 0.0 if now < self._passes_until else _PATIENCE_S
        if not self._wait_for(self._is_next, _LINE_PAUSE_S, min(deadline, now + patience_s)):
            if patience_s:
                self._passes_until = self._clock.monotonic() + _PASSING_S
            return self._wait_for(attempt, _LINE_PAUSE_S, deadline)
        try:
            return self._wait_for(attempt, _NEXT_PAUSE_S, deadline)
        finally:
            unlock(self._descriptor)

    def _is_next(self) -> bool:
        return lock(self._descriptor)

    def _wait_for(self, attempt: Callable[[], bool], pause_s: float, deadline: float) -> bool:
        while not attempt():
            if self._clock.monotonic() > deadline:
                return False
            time.sleep(pause_s)
        return True
