"""How the logs of partitions are opened and removed: as files on a disk, or in another way."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from spark_stream.storage.begun import note_of
from spark_stream.storage.disk import HOST_DISK, Disk
from spark_stream.storage.log import PartitionLog
from spark_stream.storage.log_format import LogFormat
from spark_stream.storage.replica_log import ReplicaLog


class Logs(Protocol):
    """The logs of a broker. A folder is a partition's, or holds the folders of a topic's.

    A topic's folder is there for as long as the topic is; a partition's, once it has an entry. So
    a topic without a folder has lost what it had.
    """

    def make_folder(self, folder: Path) -> None:
        """Makes a topic's folder, for good: a power cut does not take it.

        Raises:
            DiskFull, StorageFailure: it may be there or not.
        """

    def has_folder(self, folder: Path) -> bool:
        """Whether a topic's folder is there."""

    def open(self, folder: Path, log_format: LogFormat) -> ReplicaLog:
        """The log of a partition, as it is; an empty one if there is none yet."""

    def remove(self, folder: Path) -> None:
        """Removes the folder and all that is in it; it stays gone. No-op where there is none.

        Raises:
            StorageFailure: some of it may be left.
        """

    def remove_empty(self, folder: Path) -> None:
        """Removes the folder if nothing is in it."""


class FileLogs:
    """Logs in files."""

    def __init__(self, disk: Disk = HOST_DISK) -> None:
        self._disk = disk

    def make_folder(self, folder: Path) -> None:
        self._disk.make_directory(folder)

    def has_folder(self, folder: Path) -> bool:
        return folder.name in self._disk.names(folder.parent)

    def open(self, folder: Path, log_format: LogFormat) -> ReplicaLog:
        return PartitionLog.open(folder, log_format, self._disk)

    def remove(self, folder: Path) -> None:
        self._disk.remove(note_of(folder))
        self._disk.remove_tree(folder)

    def remove_empty(self, folder: Path) -> None:
        self._disk.remove_empty_directory(folder)
