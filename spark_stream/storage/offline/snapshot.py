"""A disk that never changes a file: writes are kept in memory.

Beside a running broker, files grow, and are replaced and removed, during the reads. So each
directory is listed once, and each file mapped once. A segment's entries are read first, and its
``.arrow`` file up to their last batch. The broker writes a batch before its entry, so this part of
a growing segment is complete. The bytes after it are ignored: they may belong to an append that is
under way, and the broker may cut them off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import schema_length
from spark_stream.consistency.entries import ENTRY_SIZE
from spark_stream.errors import StorageFailure
from spark_stream.storage.disk.disk import HOST_DISK, Disk, DiskFile
from spark_stream.storage.format.codec import Part, intact_rows
from spark_stream.storage.log.segment_files import NOTHING, whole_rows

_SETTLED_TRIES: Final = 10
_SETTLED_PAUSE_S: Final = 0.05
_LAST_ENTRIES: Final = 64
_PREFIX_BYTES: Final = 8  # of an Arrow message, before its metadata


class Change(Struct, frozen=True):
    """A change of a file: its size in bytes before and after, or None if there is no file."""

    path: Path
    before: int | None
    after: int | None

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.path} is removed"
        if self.before is None:
            return f"{self.path} is made, with {self.after} bytes"
        if self.after < self.before:
            return f"{self.path} is cut from {self.before} to {self.after} bytes"
        return f"{self.path} is rewritten, with {self.after} bytes"


class SnapshotDisk:
    """The files of a disk, with changes in memory only.

    ``in_use``: a broker may be writing the files.
    """

    def __init__(self, disk: Disk = HOST_DISK, *, in_use: bool = False) -> None:
        self._disk = disk
        self._in_use = in_use
        self._ours: dict[Path, pa.Buffer | None] = {}  # None: it is removed
        self._mapped: dict[Path, pa.Buffer] = {}
        self._listed: dict[Path, list[str]] = {}

    def unchanged(self) -> SnapshotDisk:
        """Return the same snapshot, without the changes of this one."""
        found = SnapshotDisk(self._disk, in_use=self._in_use)
        found._mapped, found._listed = self._mapped, self._listed
        return found

    # -- reading --------------------------------------------------------------------------------

    def map(self, path: Path) -> pa.Buffer:
        if path in self._ours:
            return self._content(path)
        if path not in self._mapped:
            self._mapped[path] = self._settled(path) if self._in_use else self._disk.map(path)
        return self._mapped[path]

    def size(self, path: Path) -> int:
        return int(self.map(path).size)

    def stored_size(self, path: Path) -> int:
        size = self.size(path)
        return size if path in self._ours else min(size, self._disk.stored_size(path))

    def read_stored(self, path: Path, position: int, length: int) -> pa.Buffer:
        if path in self._ours:
            return _part(self._content(path), position, length)
        try:
            return self._disk.read_stored(path, position, length)
        except StorageFailure as error:
            if path not in self._mapped or not isinstance(error.__cause__, FileNotFoundError):
                raise
            return _part(self._mapped[path], position, length)  # removed since it was mapped

    def names(self, directory: Path) -> list[str]:
        if directory not in self._listed:
            self._listed[directory] = self._disk.names(directory)
        found = set(self._listed[directory])
        for path, content in self._ours.items():
            if path.parent == directory and content is None:
                found.discard(path.name)
            elif directory in path.parents and content is not None:
                found.add(path.relative_to(directory).parts[0])
        return sorted(found)

    def identity(self, path: Path) -> tuple[int, int]:
        return self._disk.identity(path)

    def stamp(self, path: Path) -> str:
        return self._disk.stamp(path)

    def _content(self, path: Path) -> pa.Buffer:
        found = self._ours[path]
        if found is None:
            raise StorageFailure(f"{path}: No such file or directory")
        return found

    def _settled(self, path: Path) -> pa.Buffer:
        """Return a file's bytes beside a running broker, without an append under way."""
        if path.suffix == ".entries":
            return self._settled_entries(path)
        end = None
        if path.suffix == ".arrow":
            entries = path.with_suffix(".entries")
            there = entries.name in self.names(path.parent)
            table = whole_rows(self.map(entries) if there else NOTHING)
            if len(table):
                end = int((table["position"] + table["length"]).max())  # blank rows have no batch
        data = self._disk.map(path)
        if path.suffix == ".arrow" and end is None and data.size >= _PREFIX_BYTES:
            end = schema_length(data) or None
        return data if end is None else _part(data, 0, end)

    def _settled_entries(self, path: Path) -> pa.Buffer:
        """Return a copy of the entries, which may be cut. Wait for the end of a write."""
        raw = self._content_on_disk(path)
        for _ in range(_SETTLED_TRIES):
            if _ends_whole(raw):
                break
            before = raw
            time.sleep(_SETTLED_PAUSE_S)
            raw = self._content_on_disk(path)
            if raw.equals(before):  # no write is under way: this is damage
                break
        return raw

    def _content_on_disk(self, path: Path) -> pa.Buffer:
        """Return a copy of the file's bytes without a hole at its end."""
        size = self._disk.stored_size(path)
        try:
            with path.open("rb") as file:
                return pa.py_buffer(file.read(size))
        except OSError as error:
            raise StorageFailure(f"{path}: {error.strerror}") from error

    # -- writing: in memory only ------------------------------------------------------------------

    def open(self, path: Path) -> DiskFile:
        return _SnapshotFile(self, path)

    def create(self, path: Path) -> DiskFile:
        self.put(path, pa.py_buffer(b""))
        return _SnapshotFile(self, path)

    def put(self, path: Path, content: pa.Buffer) -> None:
        """Set the content of a file."""
        self._ours[path] = content

    def write_whole(self, path: Path, parts: Sequence[Part]) -> None:
        (only, *others) = parts
        content = b"".join(parts) if others else only
        self.put(path, pa.py_buffer(content))

    def rename(self, path: Path, new: Path) -> None:
        self.put(new, self.map(path))
        self._ours[path] = None

    def link(self, path: Path, new: Path) -> None:
        self.put(new, self.map(path))

    def remove(self, path: Path) -> None:
        self._ours[path] = None

    def remove_tree(self, path: Path) -> None:
        for name in self.names(path):
            self.remove_tree(path / name) if (path / name).is_dir() else self.remove(path / name)

    def make_directory(self, path: Path, *, forced: bool = True) -> None:
        """Do nothing: a directory exists once it has a file."""

    def remove_empty_directory(self, path: Path) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing: the content is in memory only."""

    def changes(self) -> list[Change]:
        """Return the changed files, with their sizes before and after."""
        found = []
        for path, content in sorted(self._ours.items()):
            before = None
            if path.name in self._listed.get(path.parent, ()):
                before = self._disk.size(path)
            after = None if content is None else content.size
            if before is None and after is None:
                continue
            if content is None or before != after or not content.equals(self._disk.map(path)):
                found.append(Change(path, before, after))
        return found


class _SnapshotFile:
    """One file of a :class:`SnapshotDisk`."""

    def __init__(self, disk: SnapshotDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def write(self, position: int, *parts: Part) -> None:
        data, old = b"".join(parts), self._disk.map(self._path)
        if _part(old, position, len(data)).equals(pa.py_buffer(data)):
            return  # the same bytes again: no copy of the segment is needed
        content = bytearray(old)
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data
        self._disk.put(self._path, pa.py_buffer(bytes(content)))

    def cut(self, size: int) -> None:
        self._disk.put(self._path, _part(self._disk.map(self._path), 0, size))

    def read(self, position: int, length: int) -> pa.Buffer | None:
        return _part(self._disk.map(self._path), position, length)

    def flush(self) -> None:
        """Do nothing: the content is in memory only."""

    def identity(self) -> tuple[int, int]:
        return self._disk.identity(self._path)

    def close(self) -> None:
        """Do nothing."""


def _ends_whole(raw: pa.Buffer) -> bool:
    """Return whether the last entries have right checksums, so they are complete."""
    if raw.size % ENTRY_SIZE:
        return False
    return bool(intact_rows(whole_rows(raw)[-_LAST_ENTRIES:]).all())


def _part(data: pa.Buffer, position: int, length: int) -> pa.Buffer:
    """Return these bytes, or fewer at the end of the data."""
    position = min(position, data.size)
    return data.slice(position, min(length, data.size - position))
