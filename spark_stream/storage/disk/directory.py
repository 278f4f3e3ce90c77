"""The broker's directory: whose it is, of which format, and where its parts lie.

::

    isolog.json       what this directory is: format, version, cluster id, and its broker's id
    broker.lock       locked (flock) by the one broker that serves the directory
    audit.log         refused calls, and what administrators did, if the broker authenticates
    broker.json       where that broker listens, and its process id
    broker.log        the output of a broker in the background
    broker.run        the name of the last run of its broker: tells it from an earlier copy
    broker.original   inode and time of that file, to tell it from a copy of it
    broker.promise    for how many seconds its broker may have promised not to lead
    committed.json    up to where its partitions were known to be committed
    metadata.sqlite   topics, transactions, positions, numbers (a shared store lies elsewhere)
    leases/           which brokers are alive; beside the store
    topics/<name>/<topic id>/<partition>/<base offset>.arrow and .entries
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
    """An opened log directory."""

    path: Path
    cluster_id: str
    broker_id: str = ""

    def topic(self, name: str, topic_id: str) -> Path:
        """Return the folder of a topic; the only place where its name and id become a path.

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
        """Return the folder of a partition; raise what :meth:`topic` raises."""
        return self.topic(name, topic_id) / f"{partition:d}"


def check_directory(path: Path, disk: Disk = HOST_DISK) -> None:
    """Make the directory if it is missing; refuse one of other software without changing it.

    Needs no lock: the result is right even while another broker initializes the directory.

    Raises:
        NotALogDirectory: it holds files of other software, or is not a directory.
        UnsupportedFormat: a release with another format wrote it.
    """
    names = _names(path, disk)
    if not names:
        disk.make_directory(path)
        return
    if _is_described(path, disk):  # after the listing: a broker makes the description first
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
    """Return the topics that have a folder in the directory: topic id to name."""
    topics = path / "topics"
    return {topic_id: name for name in disk.names(topics) for topic_id in disk.names(topics / name)}


def recorded_cluster_id(path: Path, disk: Disk = HOST_DISK) -> str | None:
    """Return the id of the directory's cluster, or None if it is not a log directory yet."""
    return _described(path, disk).cluster_id if _is_described(path, disk) else None


class RunFile(Struct, frozen=True):
    """The files in which a directory names the run that uses it.

    A copy of the directory names the same run, but in another file. A process that dies between
    writing the two files leaves a directory that looks like a copy.
    """

    path: Path
    disk: Disk = HOST_DISK

    def recorded_run(self) -> str | None:
        """Return the run that used the directory last; for a copy, "a copy of" that run.

        None if no run is named.
        """
        names = self.disk.names(self.path)
        if _RUN not in names:
            return None
        run = self._read(_RUN)
        if _ORIGINAL in names and self._read(_ORIGINAL) != self.disk.stamp(self.path / _RUN):
            return f"a copy of {run}"
        return run

    def record_run(self, run: str) -> None:
        """Record durably which run uses the directory from now on."""
        self._write(_RUN, run)
        self._write(_ORIGINAL, self.disk.stamp(self.path / _RUN))
        self.disk.sync_directory(self.path)

    def _read(self, name: str) -> str:
        return str(self.disk.map(self.path / name).to_pybytes(), "ascii", "replace").strip()

    def _write(self, name: str, text: str) -> None:
        self.disk.write_whole(self.path / name, [f"{text}\n".encode("ascii")])

    def forget_run(self) -> None:
        """Remove the run's name durably: the next start then does not trust the logs."""
        self.disk.remove(self.path / _RUN)
        self.disk.sync_directory(self.path)


class PromiseFile(Struct, frozen=True):
    """The file that says for how long a broker may have promised not to lead."""

    path: Path
    disk: Disk = HOST_DISK

    def recorded(self) -> float | None:
        """Return for how many seconds the last promise lasts, or None if all were over."""
        if _PROMISE not in self.disk.names(self.path):
            return None
        try:
            return float(self.disk.map(self.path / _PROMISE).to_pybytes())
        except ValueError:  # somebody has changed it
            return _PROMISE_MAX_S

    def record(self, lasts_s: float) -> None:
        """Record durably that promises are given that last so long."""
        self.disk.write_whole(self.path / _PROMISE, [f"{lasts_s}\n".encode("ascii")])
        self.disk.sync_directory(self.path)

    def forget(self) -> None:
        """Record that all promises are over."""
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
    """Open a log directory; initialize a missing or empty one. The caller holds the broker's lock.

    ``cluster_id``: the cluster of a new directory, by default a new cluster. ``new_id`` makes
    unique ids. ``broker_id``: whose directory it is; a new one becomes that broker's.

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
            hint="Leave the id out, or name another directory.",
        )
    return found


def disown_directory(directory: LogDirectory, disk: Disk = HOST_DISK) -> None:
    """Undo the initialization of a directory that has just become a broker's."""
    disk.remove(directory.path / _DESCRIPTION)


def _described(path: Path, disk: Disk) -> LogDirectory:
    try:
        facts = json.loads(disk.map(path / _DESCRIPTION).to_pybytes())
        name, version = facts["format"], facts["version"]
        if name != _FORMAT or type(version) is not int:
            raise ValueError(f"it describes {name!r} {version!r}")
        if version == FORMAT_VERSION:
            return LogDirectory(path, str(facts["cluster_id"]), str(facts["broker_id"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotALogDirectory(
            f"{path / _DESCRIPTION} is not readable as isolog's description: {error}",
            path=str(path),
        ) from error
    raise UnsupportedFormat(
        f"{path} has format {version}; this release reads format {FORMAT_VERSION}",
        path=str(path),
    )


def _write_description(directory: LogDirectory, disk: Disk) -> LogDirectory:
    """Write the description into the directory atomically and durably.

    It must come first: a directory with a metadata store but without the description would look
    like one of other software.
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


def note_of(directory: Path) -> Path:
    """Return the path of the empty file that marks the log in the directory as begun.

    A log has no directory before its first entry. Without the note, a log whose directory was
    removed would look like one that never had an entry, and a broker would vouch for it. The note
    is made before the first entry; when the replica is removed, it goes before the directory.
    """
    return directory.with_name(f"{directory.name}.begun")


def make_directory(disk: Disk, directory: Path) -> None:
    """Make the directory of a log, then the note that it has begun; force the names of both."""
    disk.make_directory(directory, forced=False)
    if not _is_noted(disk, directory):
        disk.create(note_of(directory)).close()
    disk.sync_directory(directory.parent)


def is_lost(disk: Disk, directory: Path) -> bool:
    """Return whether a log without files once had a directory that is gone now."""
    return _is_noted(disk, directory) and directory.name not in disk.names(directory.parent)


def _is_noted(disk: Disk, directory: Path) -> bool:
    try:
        disk.size(note_of(directory))
    except StorageFailure:
        return False
    return True
