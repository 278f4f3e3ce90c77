"""The note that a log has begun: an empty file beside the log's directory.

A log has no directory before its first entry. So nothing would tell a directory that somebody has
removed from a log that never had an entry, and a broker would vouch for it. The note is there, for
good, before the first entry is; it goes before the directory does when the replica is removed.
"""

from __future__ import annotations

from pathlib import Path

from spark_stream.errors import StorageFailure
from spark_stream.storage.disk.disk import Disk


def note_of(directory: Path) -> Path:
    """Return the path of the file that marks the log in the directory as begun."""
    return directory.with_name(f"{directory.name}.begun")


def make_directory(disk: Disk, directory: Path) -> None:
    """Make the directory of a log, then the note that it has begun; force the names of both."""
    disk.make_directory(directory, forced=False)
    if not _is_noted(disk, directory):
        disk.create(note_of(directory)).close()
    disk.sync_directory(directory.parent)


def is_lost(disk: Disk, directory: Path) -> bool:
    """Return whether a log that has no files once had a directory, and has none any more."""
    return _is_noted(disk, directory) and directory.name not in disk.names(directory.parent)


def _is_noted(disk: Disk, directory: Path) -> bool:
    try:
        disk.size(note_of(directory))
    except StorageFailure:
        return False
    return True
