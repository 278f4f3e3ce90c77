"""The broker's directory: its owner, its format, and the places of its parts.

::

    isolog.json       the description: format, version, cluster id, and the broker's id
    broker.lock       locked (flock) by the one broker that serves the directory
    audit.log         refused calls and actions of administrators, if the broker authenticates
    broker.json       the address of that broker, and its process id
    broker.log        the output of a broker in the background
    broker.run        the name of the broker's last run, to detect an earlier copy
    broker.original   inode and time of that file, to detect a copy of the directory
    broker.promise    the longest promise not to lead, in seconds, that its broker may have given
    committed.json    the recorded high watermarks of its partitions
    metadata.sqlite   topics, transactions, positions, numbers (unless the store is shared)
    leases/           the live brokers (beside the store)
    topics/<name>/<topic id>/<partition>/<base offset>.arrow and .entries
    made/<topic id>   empty: the folder of the topic was made
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from spark_stream.consistency.ids import is_folder_name
from spark_stream.errors import (
    InvalidConfig,
    InvalidTopic,
    NotALogDirectory,
    StorageFailure,
    UnsupportedFormat,
)
from spark_stream.storage.disk.disk import HOST_DISK, Disk

FORMAT_VERSION: Final = 1
_FORMAT: Final = "isolog"
_DESCRIPTION: Final = "isolog.json"
_RUN: Final = "broker.run"
_ORIGINAL: Final = "broker.original"
_PROMISE: Final = "broker.promise"
_PROMISE_MAX_S: Final = 60.0
_STORE: Final = "broker.store"
_OURS: Final = frozenset(
    {"isolog.json", "isolog.json.new", "broker.lock", "broker.json", "broker.log", "start.lock"}
)


class LogDirectory(Struct, frozen=True):
    """A broker's directory: its path, its cluster and its broker."""

    path: Path
    cluster_id: str
    broker_id: str = ""

    def topic(self, name: str, topic_id: str) -> Path:
        """Return the folder of a topic. No other function makes a path of a topic's name.

        Raises:
            InvalidTopic: the name or the id cannot be a folder's name.
        """
        for each in (name, topic_id):
            if not is_folder_name(each):
                raise InvalidTopic(
                    f"topic {name!r} with the id {topic_id!r}: {each!r} cannot name a folder",
                    topic=name,
                )
        return self.path / "topics" / name / topic_id

    def partition(self, name: str, topic_id: str, partition: int) -> Path:
        """Return the folder of a partition. Errors: as for :meth:`topic`."""
        return self.topic(name, topic_id) / f"{partition:d}"


def check_directory(path: Path, disk: Disk = HOST_DISK) -> None:
    """Make the directory if it is missing. Refuse a directory of other software, unchanged.

    No lock is needed: the result is right even while another broker initializes the directory.

    Raises:
        NotALogDirectory: The path has files of other software, or is not a directory.
        UnsupportedFormat: a release with another format wrote it.
    """
    names = _names(path, disk)
    if not names:
        disk.make_directory(path)
        return
    if _is_described(path, disk):  # after the listing: the description is the first file
        _described(path, disk)
        return
    strange = sorted(set(names) - _OURS)
    if strange:
        shown = ", ".join(strange[:3]) + (", …" if len(strange) > 3 else "")
        raise NotALogDirectory(
            f"{path} is not empty and was not made by isolog (it holds {shown})", path=str(path)
        )


def _names(path: Path, disk: Disk) -> list[str]:
    try:
        return disk.names(path)
    except StorageFailure as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise NotALogDirectory(f"{path} is not a directory", path=str(path)) from error
        raise


def _is_described(path: Path, disk: Disk) -> bool:
    return _DESCRIPTION in disk.names(path)


def topic_folders(path: Path, disk: Disk = HOST_DISK) -> dict[str, str]:
    """Return the topics with a folder in the directory: topic id → name."""
    topics = path / "topics"
    return {topic_id: name for name in disk.names(topics) for topic_id in disk.names(topics / name)}


def recorded_cluster_id(path: Path, disk: Disk = HOST_DISK) -> str | None:
    """Return the id of the directory's cluster, or None if it has no description yet."""
    return _described(path, disk).cluster_id if _is_described(path, disk) else None


class RunFile(Struct, frozen=True):
    """The files with the name of the run that uses a directory.

    A copy of the directory has the same name, but in a file with another inode. If a process dies
    between the writes of the two files, its directory looks like a copy.
    """

    path: Path
    disk: Disk = HOST_DISK

    def recorded_run(self) -> str | None:
        """Return the run that used the directory last, or "a copy of" that run for a copy.

        Without a recorded run, return None.
        """
        names = self.disk.names(self.path)
        if _RUN not in names:
            return None
        run = self._read(_RUN)
        if _ORIGINAL in names and self._read(_ORIGINAL) != self.disk.stamp(self.path / _RUN):
            return f"a copy of {run}"
        return run

    def record_run(self, run: str) -> None:
        """Record durably that this run uses the directory."""
        self._write(_RUN, run)
        self._write(_ORIGINAL, self.disk.stamp(self.path / _RUN))
        self.disk.sync_directory(self.path)

    def _read(self, name: str) -> str:
        return str(self.disk.map(self.path / name).to_pybytes(), "ascii", "replace").strip()

    def _write(self, name: str, text: str) -> None:
        self.disk.write_whole(self.path / name, [f"{text}\n".encode("ascii")])

    def forget_run(self) -> None:
        """Remove the run's name durably, so that the next start does not trust the logs."""
        self.disk.remove(self.path / _RUN)
        self.disk.sync_directory(self.path)


class PromiseFile(Struct, frozen=True):
    """The file with the longest promise not to lead that a broker may have given."""

    path: Path
    disk: Disk = HOST_DISK

    def recorded(self) -> float | None:
        """Return the duration of the last promise in seconds, or None if all have expired."""
        if _PROMISE not in self.disk.names(self.path):
            return None
        try:
            return float(self.disk.map(self.path / _PROMISE).to_pybytes())
        except ValueError:  # the file was edited
            return _PROMISE_MAX_S

    def record(self, lasts_s: float) -> None:
        """Record durably that promises of this duration are given."""
        self.disk.write_whole(self.path / _PROMISE, [f"{lasts_s}\n".encode("ascii")])
        self.disk.sync_directory(self.path)

    def forget(self) -> None:
        """Record that all promises have expired."""
        self.disk.remove(self.path / _PROMISE)


class StoreMarkFile(Struct, frozen=True):
    """The file with the newest state of the metadata store that the broker has read."""

    path: Path
    disk: Disk = HOST_DISK

    def recorded(self) -> str | None:
        """Return the recorded mark, or None."""
        if _STORE not in self.disk.names(self.path):
            return None
        return str(self.disk.map(self.path / _STORE).to_pybytes(), "ascii", "replace")

    def record(self, mark: str) -> None:
        """Record a mark durably."""
        self.disk.write_whole(self.path / _STORE, [mark.encode()])


def open_directory(
    path: Path,
    cluster_id: str | None = None,
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    disk: Disk = HOST_DISK,
    *,
    broker_id: str | None = None,
) -> LogDirectory:
    """Open a log directory. Initialize a missing or empty one. The caller holds the broker's lock.

    ``cluster_id``: the cluster of a new directory, by default a new cluster. ``new_id`` makes
    unique ids. ``broker_id``: the owner of the directory, which a new directory gets.

    Raises:
        NotALogDirectory, UnsupportedFormat: as for :func:`check_directory`.
    """
    check_directory(path, disk)
    if not _is_described(path, disk):
        made = LogDirectory(path, cluster_id or new_id(), broker_id or new_id())
        return _write_description(made, disk)
    found = _described(path, disk)
    if broker_id not in (None, found.broker_id):
        raise InvalidConfig(
            f"{path} is the directory of broker {found.broker_id}, not of {broker_id}",
            setting="id",
            hint="Leave the id out, or choose another directory.",
        )
    return found


def disown_directory(directory: LogDirectory, disk: Disk = HOST_DISK) -> None:
    """Undo the initialization of a new directory."""
    disk.remove(directory.path / _DESCRIPTION)


def _described(path: Path, disk: Disk) -> LogDirectory:
    try:
        facts = json.loads(disk.map(path / _DESCRIPTION).to_pybytes())
        name, version = facts["format"], facts["version"]
        if name != _FORMAT or type(version) is not int:
            raise ValueError(f"its format is {name!r}, version {version!r}")
        if version == FORMAT_VERSION:
            return LogDirectory(path, str(facts["cluster_id"]), str(facts["broker_id"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotALogDirectory(
            f"{path / _DESCRIPTION} is not a valid description of a log directory: {error}",
            path=str(path),
        ) from error
    raise UnsupportedFormat(
        f"{path} has format {version}; this release reads format {FORMAT_VERSION}",
        path=str(path),
    )


def _write_description(directory: LogDirectory, disk: Disk) -> LogDirectory:
    """Write the description into the directory atomically and durably.

    It must be the first file: a directory with a metadata store but without the description would
    look like one of other software.
    """
    facts = {
        "format": _FORMAT,
        "version": FORMAT_VERSION,
        "cluster_id": directory.cluster_id,
        "broker_id": directory.broker_id,
    }
    text = json.dumps(facts, indent=1) + "\n"
    disk.write_whole(directory.path / _DESCRIPTION, [text.encode()])
    disk.sync_directory(directory.path)
    return directory


def topic_note(folder: Path) -> Path:
    """Return the path of the empty file that marks the folder of a topic as made.

    Without it, a topic whose folder was removed would look like one whose replicas moved here while
    the broker was down. The note is made after the folder. It is removed before the folder, or with
    the last replica of the topic.
    """
    topics = folder.parent.parent
    return topics.with_name("made") / folder.name


def log_note(directory: Path) -> Path:
    """Return the path of the empty file that marks the log in the directory as begun.

    A log has no directory before its first entry. Without the note, a log whose directory was
    removed would look like one that never had an entry, and a broker would vouch for it. The note
    is made before the first entry. It is removed with the replica, before the directory.
    """
    return directory.with_name(f"{directory.name}.begun")


def make_log_directory(disk: Disk, directory: Path) -> None:
    """Make the directory of a log, then the note that it has begun. Fsync the names of both."""
    disk.make_directory(directory, forced=False)
    if not exists(disk, log_note(directory)):
        disk.create(log_note(directory)).close()
    disk.sync_directory(directory.parent)


def make_topic_folder(disk: Disk, folder: Path) -> None:
    """Make the folder of a topic, then its note. Fsync the names of both, and of their parents."""
    disk.make_directory(folder)
    note = topic_note(folder)
    if not exists(disk, note):
        disk.make_directory(note.parent)
        disk.create(note).close()
    disk.sync_directory(note.parent)


def is_lost(disk: Disk, directory: Path, note: Path) -> bool:
    """Return whether the directory was removed without its note."""
    return exists(disk, note) and directory.name not in disk.names(directory.parent)


def exists(disk: Disk, path: Path) -> bool:
    """Return whether there is a file at the path."""
    try:
        disk.size(path)
    except StorageFailure:
        return False
    return True
