"""The files of a metadata store: copies of them, and which one a path names.

A store that was deleted is written back by one broker. The note ``-restored`` beside it names the
file that was open and its new copy, so that the other brokers take the copy, and no other file.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_stream.errors import InvalidRequest

logger = logging.getLogger(__name__)

FileId = tuple[int, int]
"""A file whatever its name is: its device and its inode."""

_HEADER: Final = b"SQLite format 3\0"


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


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Write a consistent copy to a new file, which only its owner may read, and force it."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    copy = sqlite3.connect(target)
    try:
        source.backup(copy)
    finally:
        copy.close()
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_at(path: Path) -> FileId | None:
    """Return the file that a path names, without opening it: that would end SQLite's locks."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def write_back(source: sqlite3.Connection, path: Path, opened: FileId | None) -> None:
    """Copy an open database, whose file was deleted, to its path, and note that this was done.

    Raises:
        InvalidRequest: Another file is there.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    try:
        copy_database(source, fresh)
        if file_at(path) is None:
            for suffix in ("-wal", "-shm"):  # those of the open file have no names any more
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        _note_of(path).write_text(json.dumps({"from": opened, "to": file_at(fresh)}))
        os.link(fresh, path)  # never in the place of another file
        sync_folder(path.parent)
    except FileExistsError:
        raise InvalidRequest(
            f"another file is in the place of the metadata store {path}",
            hint="Move it away first, with the files beside it that end in -wal and -shm.",
            path=str(path),
        ) from None
    finally:
        fresh.unlink(missing_ok=True)


def was_written_back(path: Path, opened: FileId | None, found: FileId | None) -> bool:
    """Return whether the file found at the path is the copy that was made of the open one."""
    try:
        note = json.loads(_note_of(path).read_text())
    except (OSError, ValueError):
        return False
    return found is not None and note == {"from": list(opened or ()), "to": list(found)}


def forget_other_copy(path: Path, opened: FileId | None) -> None:
    """Remove the note about a copy that is not the file opened: inodes are used again.

    The note about the opened file stays: brokers that have the deleted file open still need it.
    """
    try:
        note = json.loads(_note_of(path).read_text())
    except FileNotFoundError:
        return
    except ValueError:
        note = {}
    if note.get("to") != list(opened or ()):
        _note_of(path).unlink(missing_ok=True)


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


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + "-restored")
