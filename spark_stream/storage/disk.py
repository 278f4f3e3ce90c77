"""The seam between the log and the operating system's files.

Two rules hold for every implementation. A write goes to an explicit position, so a failed one can
be repeated. ``cut`` removes only bytes that no entry has published: nobody else reads those,
whereas a published file may be mapped by a reader, who would die of SIGBUS if it shrank
(``write_whole`` is the way to shorten such a file).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from spark_stream.errors import DiskFull, StorageFailure

# EFBIG is the file-size limit of the process (`ulimit -f`): to a user the same as a full disk.
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFile(Protocol):
    """One open file; all positions and lengths in bytes."""

    def size(self) -> int: ...
    def write(self, position: int, data: pa.Buffer | bytes) -> None: ...
    def cut(self, size: int) -> None: ...
    def read(self, position: int, length: int) -> pa.Buffer | None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """The operations on directories and whole files."""

    def open(self, path: Path) -> DiskFile: ...
    def map(self, path: Path) -> pa.Buffer: ...
    def names(self, directory: Path) -> list[str]: ...
    def make_directory(self, path: Path) -> None: ...
    def write_whole(self, path: Path, parts: list[pa.Buffer | bytes]) -> None: ...
    def rename(self, path: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def keep_aside(self, path: Path, copy: Path) -> None: ...
    def sync_directory(self, path: Path) -> None: ...


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns the system's errors into ours, with the path in them."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"no room to write {path}: {error.strerror}") from error
        raise StorageFailure(f"{path}: {error.strerror or error}") from error


def _write_fully(descriptor: int, position: int, data: pa.Buffer | bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


class _Descriptor:
    """An open file's number. Whoever uses it holds this, so no other file gets it meanwhile."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class OsFile:
    """A file of the operating system, made if it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _named(path):
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held: _Descriptor | None = _Descriptor(number)

    def size(self) -> int:
        with _named(self._path):
            return os.fstat(self._descriptor.number).st_size

    def write(self, position: int, data: pa.Buffer | bytes) -> None:
        with _named(self._path):
            _write_fully(self._descriptor.number, position, data)

    def cut(self, size: int) -> None:
        with _named(self._path):
            os.ftruncate(self._descriptor.number, size)

    def read(self, position: int, length: int) -> pa.Buffer | None:
        """The bytes, as far as the file goes; None once the file is closed.

        Readers are other threads than the one that closes: a read under way ends first.
        """
        held = self._held
        if held is None:
            return None
        with _named(self._path):
            return pa.py_buffer(os.pread(held.number, length, position))

    def flush(self) -> None:
        with _named(self._path):
            os.fdatasync(self._descriptor.number)

    def close(self) -> None:
        self._held = None

    @property
    def _descriptor(self) -> _Descriptor:
        if self._held is None:
            raise ValueError(f"{self._path} is closed")
        return self._held


class OsDisk:
    """The operating system's file system."""

    def open(self, path: Path) -> OsFile:
        return OsFile(path)

    def map(self, path: Path) -> pa.Buffer:
        """The whole file as a read-only mapping that lives as long as the buffer does."""
        with _named(path):
            if path.stat().st_size == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(str(path), "r") as source:
                return source.read_buffer()

    def names(self, directory: Path) -> list[str]:
        with _named(directory):
            return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        """Makes the directory and those above it, each with its name forced to the disk."""
        with _named(path):
            missing = [each for each in (path, *path.parents) if not each.exists()]
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in missing:
            self.sync_directory(each.parent)

    def write_whole(self, path: Path, parts: list[pa.Buffer | bytes]) -> None:
        """Puts the parts in place of the file, all or nothing, by rename.

        The content is on the disk then; its name is once the directory was synchronised.
        """
        fresh = path.with_name(path.name + ".new")
        with _named(path):
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                position = 0
                for part in parts:
                    _write_fully(descriptor, position, part)
                    position += len(memoryview(part))
                os.fsync(descriptor)
            except OSError:
                fresh.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            os.replace(fresh, path)

    def rename(self, path: Path, new: Path) -> None:
        with _named(path):
            os.replace(path, new)

    def remove(self, path: Path) -> None:
        with _named(path):
            path.unlink(missing_ok=True)

    def keep_aside(self, path: Path, copy: Path) -> None:
        """Gives the file's present content a second name, so that replacing it loses nothing."""
        with _named(path):
            copy.parent.mkdir(mode=0o700, exist_ok=True)
            copy.unlink(missing_ok=True)
            os.link(path, copy)

    def sync_directory(self, path: Path) -> None:
        with _named(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
