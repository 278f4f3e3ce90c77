"""The interface between the log and the operating system's files.

These rules hold for every implementation. A write goes to an explicit position, so a failed one can
be repeated. A failed ``flush`` (an fsync) is not repeated: the system may have dropped the bytes
that it could not write, and a second ``flush`` would then succeed. ``sync_directory`` marks such a
failure by the detail ``unforced`` of its error. ``cut`` removes only bytes that no entry has
published, so no reader uses them. A reader may have mapped a published part, and its process would
get SIGBUS if the file shrank. Such a file is shortened by ``write_whole``.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from spark_stream.counting import Histogram
from spark_stream.errors import DiskFull, IsologError, StorageFailure, TooManyOpenFiles
from spark_stream.operating_system import (
    DIRECT,
    drop_pages,
    generation_of,
    last_hole,
    open_files_limit,
    read_into,
    sync,
    sync_data,
    write_parts,
)
from spark_stream.storage.disk.descriptors import EARLY, Descriptor, DescriptorPool, PooledFile
from spark_stream.storage.format.codec import Part

_BLOCK: Final = 4096  # a multiple of the blocks of all disks in use
_REFUSALS: Final = {errno.EINVAL, errno.EOPNOTSUPP}


def stored_bytes(path: Path, position: int, length: int) -> pa.Buffer:
    """Read bytes from the disk itself, bypassing the page cache. Return fewer at the file's end.

    ``O_DIRECT`` reads into our own buffer. The cached pages of readers stay in memory, and a good
    page does not hide a damaged sector. (The system first writes those bytes that are not on the
    disk yet.) Positions and lengths must be multiples of the disk's blocks. Some file systems
    refuse ``O_DIRECT``: then the bytes come through the cache, and the pages that no reader has
    mapped are dropped from it.

    Raises:
        OSError: the file cannot be opened, or the disk cannot read the bytes.
    """
    if DIRECT:
        try:
            return _read(path, position, length, DIRECT)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
    return _read(path, position, length, 0)


def _read(path: Path, position: int, length: int, flag: int) -> pa.Buffer:
    start = position - position % _BLOCK
    size = -(-(position + length - start) // _BLOCK) * _BLOCK
    room = memoryview(mmap.mmap(-1, max(size, _BLOCK)))  # mapped memory starts at a page boundary
    descriptor = os.open(path, os.O_RDONLY | flag)
    try:
        found = 0
        while found < size:
            got = read_into(descriptor, [room[found:size]], start + found)
            found += got
            if not got or found % _BLOCK:  # the file's end
                break
        if not flag:
            drop_pages(descriptor, start, size)
    finally:
        os.close(descriptor)
    skip = position - start
    return pa.py_buffer(room).slice(skip, max(0, min(length, found - skip)))


# EFBIG is the file-size limit of the process (`ulimit -f`). For a user it is like a full disk.
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_PARTS_MAX: Final = 1000  # in one call: the limit of Linux is 1,024

# Early writes (``descriptors``) go to the disk in pieces of this many bytes, during the appends.
_PIECE_BYTES: Final = 8 << 20

_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL
# Holes below this size are not searched for: they are read as zeros.
_HOLE_BYTES: Final = 64 << 20
_ATTEMPTS_MAX: Final = 10  # to make a directory: its parent may be removed concurrently


class DiskFile(Protocol):
    """One file to read and write. All positions and lengths are in bytes.

    It must exist at each use. An implementation may close it between uses.
    """

    def write(self, position: int, *parts: Part) -> None: ...
    def cut(self, size: int) -> None: ...
    def read(self, position: int, length: int) -> pa.Buffer | None: ...
    def flush(self) -> None: ...
    def identity(self) -> tuple[int, int]:
        """Return device and inode of the opened file, even if its name is now another file's."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The operations on directories and whole files."""

    def open(self, path: Path) -> DiskFile: ...
    def create(self, path: Path) -> DiskFile: ...
    def map(self, path: Path) -> pa.Buffer: ...
    def read_stored(self, path: Path, position: int, length: int) -> pa.Buffer: ...
    def size(self, path: Path) -> int: ...
    def stored_size(self, path: Path) -> int:
        """Return the size without a large hole at the end, which reads as zeros."""
        ...

    def identity(self, path: Path) -> tuple[int, int]:
        """Return device and inode. A later file of the same name has others."""
        ...

    def stamp(self, path: Path) -> str:
        """Return inode, its generation and the last write time. A copy of the file has others.

        The device is left out: its number may change at a restart of the machine.
        """
        ...

    def names(self, directory: Path) -> list[str]: ...
    def make_directory(self, path: Path, *, forced: bool = True) -> None: ...
    def write_whole(self, path: Path, parts: Sequence[Part]) -> None: ...
    def rename(self, path: Path, new: Path) -> None: ...
    def link(self, path: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, path: Path) -> None: ...
    def remove_empty_directory(self, path: Path) -> None: ...
    def sync_directory(self, path: Path) -> None: ...


def _typed(path: Path, error: OSError, **details: Any) -> IsologError:
    """Convert the system's error to an isolog error that names the path."""
    if error.errno in _FULL:
        return DiskFull(f"no room to write {path}: {error.strerror}", **details)
    if error.errno == errno.EMFILE:
        most = open_files_limit()
        return TooManyOpenFiles(
            f"{path} cannot be opened: this broker has as many open files as its limit allows"
            f" ({most})",
            limit=most,
            **details,
        )
    if error.errno == errno.ENFILE:
        return TooManyOpenFiles(
            f"{path} cannot be opened: this machine has as many open files as it allows",
            hint="Raise the machine's limit (`sysctl fs.file-max`), or end other processes.",
            **details,
        )
    return StorageFailure(f"{path}: {error.strerror or error}", **details)


class _Named:
    """A block whose ``OSError`` becomes an isolog error that names the path.

    With ``contextmanager`` of Python 3.12 and 3.13 the error would be in a reference cycle, which
    keeps mapped files in memory until the next garbage collection.
    """

    def __init__(self, path: Path, **details: Any) -> None:
        self._path = path
        self._details = details

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise _typed(self._path, error, **self._details) from error


def _write_fully(descriptor: int, position: int, parts: Sequence[Part]) -> int:
    """Write the parts one after the other, and return their size in bytes."""
    if len(parts) == 1:
        return _write_part(descriptor, position, parts[0])
    total = 0
    for first in range(0, len(parts), _PARTS_MAX):
        views = [memoryview(part) for part in parts[first : first + _PARTS_MAX]]
        left = sum(map(len, views))
        while left:
            written = write_parts(descriptor, views, position + total)
            total += written
            left -= written
            if left:
                views = _behind(views, written)
    return total


def _write_part(descriptor: int, position: int, part: Part) -> int:
    view = memoryview(part)
    total = os.pwrite(descriptor, view, position)
    while total < len(view):
        total += os.pwrite(descriptor, view[total:], position + total)
    return total


def _behind(views: list[memoryview], written: int) -> list[memoryview]:
    """Return the rest of the views after this many bytes."""
    at = 0
    while written >= len(views[at]):
        written -= len(views[at])
        at += 1
    return [views[at][written:], *views[at + 1 :]]


class OsFile:
    """A file of the operating system, which the pool may close between uses.

    The fsync of a whole segment would block appends until the disk has written all of it. So the
    write of large amounts to the disk is started before the fsync.
    """

    __slots__ = ("_end", "_file", "_forces", "_started")

    def __init__(
        self,
        path: Path,
        pool: DescriptorPool,
        number: int | None = None,
        forces: Histogram | None = None,
    ) -> None:
        """Take over the file's open descriptor ``number``. None means the file is not open yet.

        ``forces``: the durations of fsyncs.
        """
        self._file = PooledFile(path, pool)
        if number is not None:
            pool.adopt(self._file, Descriptor(number))
        self._started: int | None = None  # bytes before it are synced, or their write was started
        self._end = 0  # the end of the last write
        self._forces = forces

    def write(self, position: int, *parts: Part) -> None:
        file = self._file
        held = file.held  # no call in the usual case: this is on the path of every append
        try:
            if held is None:
                held = file.descriptor()
            held.used = True
            self._end = position + _write_fully(held.number, position, parts)
            if self._started is None:
                self._started = position
            elif self._end - self._started >= _PIECE_BYTES:
                EARLY.start(held, self._started, self._end - self._started)
                self._started = self._end
        except OSError as error:
            raise _typed(file.path, error) from error

    def cut(self, size: int) -> None:
        with _Named(self._file.path):
            held = self._file.descriptor()
            os.ftruncate(held.number, size)

    def read(self, position: int, length: int) -> pa.Buffer | None:
        """Return the bytes, or fewer at the file's end. Once the file is closed, return None.

        If another thread closes the file during a read, the read ends first.
        """
        try:
            held = self._file.descriptor()
            return pa.py_buffer(os.pread(held.number, length, position))
        except ValueError:
            return None
        except OSError as error:
            raise _typed(self._file.path, error) from error

    def flush(self) -> None:
        with _Named(self._file.path):
            held = self._file.descriptor()
            with self._forces.time() if self._forces else nullcontext():
                sync_data(held.number)
        self._started = self._end or None

    def identity(self) -> tuple[int, int]:
        with _Named(self._file.path):
            return self._file.identity()

    def close(self) -> None:
        self._file.close()


class OsDisk:
    """The operating system's file system."""

    def __init__(self, pool: DescriptorPool | None = None, forces: Histogram | None = None) -> None:
        """``pool`` bounds the number of open files. ``forces``: the durations of fsyncs."""
        self._pool = DescriptorPool() if pool is None else pool
        self._forces = forces

    def counting(self, forces: Histogram) -> OsDisk:
        """Return the same disk, which records the durations of its fsyncs."""
        return OsDisk(self._pool, forces)

    def open(self, path: Path) -> DiskFile:
        return OsFile(path, self._pool, forces=self._forces)

    def create(self, path: Path) -> DiskFile:
        """Create an empty file. An existing file of that name is replaced, not truncated."""
        with _Named(path):
            try:
                number = os.open(path, _NEW, 0o600)
            except FileExistsError:
                path.unlink(missing_ok=True)
                number = os.open(path, _NEW, 0o600)
        return OsFile(path, self._pool, number, self._forces)

    def map(self, path: Path) -> pa.Buffer:
        """Map the whole file for reading. The mapping exists as long as the buffer."""
        with _Named(path):
            if path.stat().st_size == 0:
                return pa.py_buffer(b"")
            with pa.memory_map(str(path), "r") as source:
                return source.read_buffer()

    def read_stored(self, path: Path, position: int, length: int) -> pa.Buffer:
        """Read these bytes, or fewer at the file's end, from the disk and not from the page cache.

        The page cache is unchanged, for the readers of records. If a file system does not support
        this, the bytes come through the cache.
        """
        with _Named(path):
            return stored_bytes(path, position, length)

    def identity(self, path: Path) -> tuple[int, int]:
        with _Named(path):
            found = path.stat()
        return found.st_dev, found.st_ino

    def stamp(self, path: Path) -> str:
        with _Named(path), path.open("rb") as file:
            found = os.fstat(file.fileno())
            return f"{found.st_ino} {generation_of(file.fileno())} {found.st_mtime_ns}"

    def size(self, path: Path) -> int:
        with _Named(path):
            return path.stat().st_size

    def stored_size(self, path: Path) -> int:
        with _Named(path):
            found = path.stat()
            if found.st_size - found.st_blocks * 512 < _HOLE_BYTES:
                return found.st_size
            number = os.open(path, os.O_RDONLY)
            try:
                return last_hole(number, found.st_size)
            finally:
                os.close(number)

    def names(self, directory: Path) -> list[str]:
        """List the names in the directory. A missing directory has none."""
        with _Named(directory):
            try:
                return sorted(os.listdir(directory))
            except FileNotFoundError:
                return []

    def make_directory(self, path: Path, *, forced: bool = True) -> None:
        """Make the directory and its missing parents, and fsync their names.

        Args:
            path: The directory.
            forced: If False, the caller fsyncs the name of ``path`` itself.

        The deletion of a topic, for example, may concurrently remove an empty parent.
        """
        if not forced and self._is_made(path):
            return
        for attempt in range(_ATTEMPTS_MAX):
            try:
                with _Named(path):
                    self._make_directory(path)
                return
            except StorageFailure as error:
                vanished = isinstance(error.__cause__, FileNotFoundError)
                if not vanished or attempt + 1 == _ATTEMPTS_MAX:
                    raise

    def _is_made(self, path: Path) -> bool:
        """Make the directory, unless its parent is missing. Return whether it exists then."""
        with _Named(path):
            try:
                path.mkdir(mode=0o700, exist_ok=True)
            except FileNotFoundError:
                return False
        return True

    def _make_directory(self, path: Path) -> None:
        """Make the directory and its parents from the top down, with an fsync of each name.

        The name of an existing directory gets an fsync too, in case its maker died before that.
        """
        missing = [each for each in (path, *path.parents) if not each.exists()]
        there = path.parents[len(missing) - 1] if missing else path
        if os.access(there.parent, os.R_OK):  # parents of the broker's directory may be unreadable
            self.sync_directory(there.parent)
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            self.sync_directory(each.parent)

    def write_whole(self, path: Path, parts: Sequence[Part]) -> None:
        """Replace the file's content with the parts atomically, by rename.

        The content is then on the disk. Its name is on the disk after ``sync_directory``.
        """
        fresh = path.with_name(path.name + ".new")
        with _Named(path):
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_fully(descriptor, 0, parts)
                sync(descriptor)
            except OSError:
                fresh.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            os.replace(fresh, path)

    def rename(self, path: Path, new: Path) -> None:
        with _Named(path):
            os.replace(path, new)

    def link(self, path: Path, new: Path) -> None:
        """Give the file a second name. If the file system cannot do that, make a copy."""
        try:
            os.link(path, new)
        except OSError:
            self.write_whole(new, [self.map(path)])

    def remove(self, path: Path) -> None:
        with _Named(path):
            path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove the directory and everything in it, durably: after a power cut too.

        The nearest existing parent gets an fsync even if the directory itself does not exist: the
        process of an earlier removal may have died before its fsync.
        """
        with _Named(path), suppress(FileNotFoundError):
            shutil.rmtree(path)
        self.sync_directory(next(each for each in path.parents if each.is_dir()))

    def remove_empty_directory(self, path: Path) -> None:
        """Remove the directory if it is empty."""
        with suppress(OSError):
            path.rmdir()

    def sync_directory(self, path: Path) -> None:
        with _Named(path):
            descriptor = os.open(path, os.O_RDONLY)
        try:
            with _Named(path, unforced=True):
                sync(descriptor)
        finally:
            os.close(descriptor)


# All logs of a process share one bound on open files.
HOST_DISK: Final = OsDisk()
