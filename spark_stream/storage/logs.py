"""The logs of a broker: open, set aside, remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_stream.storage.disk.directory import (
    exists,
    is_lost,
    log_note,
    make_topic_folder,
    topic_note,
)
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.damage import CUT_FOLDER, CutFolder
from spark_stream.storage.log.log import PartitionLog


class FileLogs:
    """The logs of a broker. A folder belongs to a partition, or to a topic with its partitions.

    A topic's folder exists as long as the topic. A partition's folder is made with its first entry.
    So a topic whose folder was removed has lost its records.

    ``losing`` is called before a log gives up records that it may have acknowledged, because a
    later open cannot detect the loss.
    """

    def __init__(self, disk: Disk = HOST_DISK, losing: Callable[[], None] = lambda: None) -> None:
        self._disk = disk
        self._losing = losing

    def make_folder(self, folder: Path) -> None:
        """Make a topic's folder durably. If it exists, only fsync it.

        Raises:
            DiskFull, StorageFailure: the folder may exist or not.
        """
        make_topic_folder(self._disk, folder)

    def has_folder(self, folder: Path) -> bool:
        """Return whether a topic's folder exists."""
        return folder.name in self._disk.names(folder.parent)

    def is_folder_lost(self, folder: Path) -> bool:
        """Return whether a topic's folder was made, and is missing."""
        return is_lost(self._disk, folder, topic_note(folder))

    def forget_folder(self, folder: Path) -> None:
        """Remove the note of a topic's folder durably. A later :meth:`make_folder` makes it again.

        Raises:
            StorageFailure: the note may be left.
        """
        note = topic_note(folder)
        if exists(self._disk, note):
            self._disk.remove(note)
            self._disk.sync_directory(note.parent)

    def remove_folder(self, folder: Path) -> None:
        """Remove a topic's folder with its content durably, and its parent if that is empty then.

        Raises:
            StorageFailure: a part of the folder may be left.
        """
        self.forget_folder(folder)
        self._disk.remove_tree(folder)
        self._disk.remove_empty_directory(folder.parent)

    def open(self, folder: Path, log_format: LogFormat) -> PartitionLog:
        """Open the log of a partition. A log without files is empty.

        Raises:
            DamagedSegment: a file that cannot be rebuilt is missing. The folder is unchanged.
        """
        return PartitionLog.open(folder, log_format, self._disk, self._losing)

    def set_aside(self, folder: Path) -> str:
        """Move a partition's files to a new folder below it, and return that folder."""
        self._losing()
        cut = CutFolder(self._disk, folder)
        for name in sorted(self._disk.names(folder), reverse=True):
            if name != CUT_FOLDER:
                cut.move(folder / name)
        cut.settle()
        return str(cut.kept_in)

    def remove(self, folder: Path) -> None:
        """Remove a partition's folder with its content durably, if it exists.

        Raises:
            StorageFailure: a part of the folder may be left.
        """
        self._disk.remove(log_note(folder))
        self._disk.remove_tree(folder)
