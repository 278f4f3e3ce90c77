"""The broker's directory: whose it is, of which format, and where its parts lie.

::

    isolog.json       what this directory is: format, version, cluster id, and its broker's id
    broker.lock       locked (flock) by the one broker that serves the directory
    broker.json       where that broker listens, and its process id
    broker.log        what a broker in the background says
    metadata.sqlite   topics, transactions, positions, numbers (a shared store lies elsewhere)
    leases/           which brokers are alive; beside the store
    topics/<name>/<topic id>/<partition>/<base offset>.arrow and .entries
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from spark_stream.errors import NewerFormat, NotALogDirectory, StorageFailure

FORMAT_VERSION: Final = 1
_FORMAT: Final = "isolog"
_OURS: Final = frozenset(
    {"isolog.json", "isolog.json.new", "broker.lock", "broker.json", "broker.log", "start.lock"}
)


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """An opened directory of ours."""

    path: Path
    cluster_id: str
    broker_id: str = ""

    @property
    def metadata(self) -> Path:
        return self.path / "metadata.sqlite"

    def topic(self, name: str, topic_id: str) -> Path:
        return self.path / "topics" / name / topic_id

    def partition(self, name: str, topic_id: str, partition: int) -> Path:
        return self.topic(name, topic_id) / str(partition)


def check_directory(path: Path) -> None:
    """Makes a missing directory; refuses one that cannot be ours, and leaves nothing in it.

    Needs no lock: it holds while another broker makes the directory its own.

    Raises:
        NotALogDirectory: it holds other people's files, or is no directory.
        NewerFormat: a later release wrote it.
    """
    if path.exists() and not path.is_dir():
        raise NotALogDirectory(f"{path} is not a directory", path=str(path))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        strange = sorted(set(os.listdir(path)) - _OURS)
        if (path / "isolog.json").exists():  # asked after the listing: it is made before the rest
            _described(path)
        elif strange:
            shown = ", ".join(strange[:3]) + (", …" if len(strange) > 3 else "")
            raise NotALogDirectory(
                f"{path} is not empty and was not made by isolog (it holds {shown})",
                path=str(path),
            )
    except OSError as error:
        raise StorageFailure(f"{path}: {error.strerror or error}", path=str(path)) from error


def topic_folders(path: Path) -> dict[str, str]:
    """The topics that the directory has folders of: the name of each topic id."""
    try:
        return {each.name: each.parent.name for each in (path / "topics").glob("*/*")}
    except OSError as error:
        raise StorageFailure(f"{path}: {error.strerror or error}", path=str(path)) from error


def recorded_cluster_id(path: Path) -> str | None:
    """The id of the cluster that the directory belongs to; None: it is not one of ours yet."""
    return _described(path).cluster_id if (path / "isolog.json").exists() else None


def open_directory(
    path: Path, cluster_id: str | None = None, new_id: Callable[[], str] = lambda: uuid.uuid4().hex
) -> LogDirectory:
    """Opens a directory, or makes a missing or empty one ours. The caller holds the broker's lock.

    ``cluster_id``: what a new directory belongs to; None: a new cluster. ``new_id`` makes ids that
    nobody else has.

    Raises:
        NotALogDirectory, NewerFormat: as :func:`check_directory`.
    """
    check_directory(path)
    try:
        found = _described(path) if (path / "isolog.json").exists() else None
        if found is None:
            return _written(LogDirectory(path, cluster_id or new_id(), new_id()))
        if not found.broker_id:  # an earlier release made it
            return _written(replace(found, broker_id=new_id()))
        return found
    except OSError as error:
        raise StorageFailure(f"{path}: {error.strerror or error}", path=str(path)) from error


def _described(path: Path) -> LogDirectory:
    try:
        facts = json.loads((path / "isolog.json").read_text())
        name, version, cluster_id = facts["format"], facts["version"], str(facts["cluster_id"])
        broker_id = str(facts.get("broker_id", ""))
        if name != _FORMAT or type(version) is not int or version < 1:
            raise ValueError(f"it describes {name!r} {version!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotALogDirectory(
            f"{path / 'isolog.json'} is not readable as isolog's description: {error}",
            path=str(path),
        ) from error
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"{path} has format {version}; this release reads formats up to {FORMAT_VERSION}",
            path=str(path),
        )
    return LogDirectory(path, cluster_id, broker_id)


def _written(directory: LogDirectory) -> LogDirectory:
    """Puts the description into the directory, in one step."""
    facts = {
        "format": _FORMAT,
        "version": FORMAT_VERSION,
        "cluster_id": directory.cluster_id,
        "broker_id": directory.broker_id,
    }
    new = directory.path / "isolog.json.new"
    with new.open("w") as file:
        file.write(json.dumps(facts, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())  # a name without its content would look like somebody else's file
    os.replace(new, directory.path / "isolog.json")
    return directory
