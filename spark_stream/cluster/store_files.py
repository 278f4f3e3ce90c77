"""The files of a metadata store: copies of them, and which one a path names."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path


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


def file_at(path: Path) -> tuple[int, int] | None:
    """Which file a path names; None: none. It must not be opened: that would end SQLite's locks."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def note_of(path: Path) -> Path:
    return path.with_name(path.name + "-restored")
