"""How the logs of partitions are opened and removed: as files on a disk, or in another way."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from spark_stream.storage.disk import HOST_DISK, Disk
from spark_stream.storage.log import PartitionLog
from spark_stream.storage.log_format import LogFormat
from spark_stream.storage.replica_log import ReplicaLog


class Logs(Protocol):
    """The logs of a broker. A folder is a partition's, or holds the folders of a topic's."""

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

    def open(self, folder: Path, log_format: LogFormat) -> ReplicaLog:
        return PartitionLog.open(folder, log_format, self._disk)

    def remove(self, folder: Path) -> None:
        self._disk.remove_tree(folder)

    def remove_empty(self, folder: Path) -> None:
        self._disk.remove_empty_directory(folder)
