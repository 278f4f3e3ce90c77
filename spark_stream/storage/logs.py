"""How the logs of partitions are opened and removed, as files on a disk or otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from spark_stream.storage.disk.aside import FOLDER, Aside
from spark_stream.storage.disk.directory import note_of
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.replica_log import ReplicaLog


class Logs(Protocol):
    """The logs of a broker. A folder is that of a partition, or of a topic with its partitions.

    A topic's folder exists as long as the topic does; a partition's folder exists once it has an
    entry. So a topic without a folder has lost what it had.
    """

    def make_folder(self, folder: Path) -> None:
        """Make a topic's folder durably; if it exists, only force it.

        Raises:
            DiskFull, StorageFailure: the folder may exist or not.
        """

    def has_folder(self, folder: Path) -> bool:
        """Return whether a topic's folder is there."""

    def open(self, folder: Path, log_format: LogFormat) -> ReplicaLog:
        """Open the log of a partition, or an empty log if there is none yet.

        Raises:
            DamagedSegment: a file that cannot be rebuilt is missing; nothing was changed.
        """

    def set_aside(self, folder: Path) -> str:
        """Empty a partition's folder, and return where its content is kept."""

    def remove(self, folder: Path) -> None:
        """Remove the folder and everything in it durably; no-op if there is none.

        Raises:
            StorageFailure: some of it may be left.
        """

    def remove_empty(self, folder: Path) -> None:
        """Remove the folder if it is empty."""


class FileLogs:
    """Logs in files.

    ``losing`` is called before a log gives up what it may have acknowledged, because a later open
    finds nothing amiss any more.
    """

    def __init__(self, disk: Disk = HOST_DISK, losing: Callable[[], None] = lambda: None) -> None:
        self._disk = disk
        self._losing = losing

    def make_folder(self, folder: Path) -> None:
        self._disk.make_directory(folder)

    def has_folder(self, folder: Path) -> bool:
        return folder.name in self._disk.names(folder.parent)

    def open(self, folder: Path, log_format: LogFormat) -> ReplicaLog:
        return PartitionLog.open(folder, log_format, self._disk, self._losing)

    def set_aside(self, folder: Path) -> str:
        self._losing()
        aside = Aside(self._disk, folder)
        for name in sorted(self._disk.names(folder), reverse=True):
            if name != FOLDER:
                aside.move(folder / name)
        aside.settle()
        return str(aside.kept_in)

    def remove(self, folder: Path) -> None:
        self._disk.remove(note_of(folder))
        self._disk.remove_tree(folder)

    def remove_empty(self, folder: Path) -> None:
        self._disk.remove_empty_directory(folder)
