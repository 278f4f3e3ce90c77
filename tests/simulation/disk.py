"""A disk in memory with the possible losses of a real one.

Of each file it has the synced content and the changes since, of each directory the synced names and
the changes since. :meth:`SimulatedDisk.crash` is a power cut: any part of the unsynced changes may
survive. Unsynced changes need not survive in their order, and a write may survive in parts: up to a
byte, or by sectors.

After a failed fsync, its data counts as clean, as on Linux: readers see it, a second fsync
succeeds, and a power cut loses it.
"""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from isolog.errors import DiskFull, IsologError, StorageFailure
from spark_stream.storage.disk.disk import Disk, DiskFile
from spark_stream.storage.format.codec import Part

SECTOR: Final = 512
"""The bytes that survive as a whole or not at all, unless a write ends within them."""


class _Write(Struct, frozen=True):
    """Bytes at a position, not forced yet."""

    position: int
    data: bytes


class _Resize(Struct, frozen=True):
    """A file was shortened, not forced yet."""

    size: int


class _Content:
    """A file's bytes, as readers see them and as they are on the disk for certain."""

    _numbers = itertools.count(1)

    def __init__(self, forced: bytes = b"") -> None:
        self.number = next(self._numbers)
        self.forced = bytearray(forced)
        self.pending: list[_Write | _Resize] = []
        self.size = len(forced)
        self._bytes = np.frombuffer(forced, np.uint8).copy()
        self._mapped: list[weakref.ref[np.ndarray]] = []

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        if end > len(self._bytes):
            grown = np.zeros(max(end, 2 * len(self._bytes)), np.uint8)
            grown[: len(self._bytes)] = self._bytes
            self._mapped.append(weakref.ref(self._bytes))
            self._bytes = grown
        self.size = max(self.size, end)
        new = np.frombuffer(data, np.uint8)
        for array in self._seen():
            part = array[position:end]
            part[:] = new[: len(part)]

    def resize(self, size: int) -> None:
        if size < self.size:
            for array in self._seen():
                array[size : self.size] = 0
        self.size = size

    def _seen(self) -> Iterable[np.ndarray]:
        """The bytes, and those of earlier mappings: a mapping shows later writes."""
        self._mapped = [each for each in self._mapped if each() is not None]
        yield from (array for each in self._mapped if (array := each()) is not None)
        yield self._bytes

    def view(self, start: int = 0, length: int | None = None) -> pa.Buffer:
        end = self.size if length is None else min(self.size, start + length)
        return pa.py_buffer(self._bytes[start : max(start, end)])

    def read(self) -> bytes:
        return self._bytes[: self.size].tobytes()

    def force_pending(self) -> None:
        """Syncs the writes since the last fsync, which may have failed."""
        for change in self.pending:
            if isinstance(change, _Resize):
                _resize(self.forced, change.size)
            else:
                _write(self.forced, change.position, change.data)
        self.pending.clear()

    def flip(self, position: int, bit: int) -> None:
        self.force_pending()  # the system first writes the unsynced changes
        if position < len(self.forced):
            self.forced[position] ^= 1 << bit
        for array in self._seen():
            if position < len(array):
                array[position] ^= 1 << bit

    def after_a_crash(self, chance: random.Random) -> bytes:
        """Return the content after a restart of the machine."""
        if not self.pending or chance.random() < 0.2:
            return bytes(self.forced)
        whole = chance.random() < 0.2
        kept = bytearray(self.forced)
        how = chance.choice(["prefix", "sectors"])
        last = len(self.pending) if whole else chance.randrange(len(self.pending) + 1)
        for number, change in enumerate(self.pending):
            if isinstance(change, _Resize):
                if whole or chance.random() < 0.5:
                    _resize(kept, change.size)
            elif whole or (how == "prefix" and number < last):
                _write(kept, change.position, change.data)
            elif how == "prefix" and number == last:
                _write(kept, change.position, change.data[: chance.randrange(len(change.data) + 1)])
            elif how == "sectors":
                for position, part in _sectors(change):
                    if chance.random() < 0.5:
                        _write(kept, position, part)
        return bytes(kept)


def _sectors(change: _Write) -> Iterable[tuple[int, bytes]]:
    position, end = change.position, change.position + len(change.data)
    while position < end:
        edge = min(end, (position // SECTOR + 1) * SECTOR)
        yield position, change.data[position - change.position : edge - change.position]
        position = edge


def _write(into: bytearray, position: int, data: bytes) -> None:
    if data and position > len(into):
        into.extend(bytes(position - len(into)))
    into[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))
    del content[size:]


def _is_below(path: Path, top: Path) -> bool:
    return top in (path, *path.parents)


class _Renaming(Struct, frozen=True):
    """The changes of names by one operation. They survive together, or not at all.

    ``content`` and ``after``: the file or directory with the name ``path`` now (None: none).
    ``freed``: its earlier name, if it had one.
    """

    path: Path
    after: _Content | None
    freed: Path | None = None

    def touches(self, directory: Path) -> bool:
        return directory in (self.path.parent, self.freed and self.freed.parent)

    def apply(self, names: dict[Path, _Content]) -> None:
        if self.freed is not None:
            names.pop(self.freed, None)
        if self.after is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.after


class SimulatedDisk(Disk):
    """Directories and files in memory.

    ``room``: the number of bytes by which files can grow. ``forces``: the number of fsyncs.
    ``refusal``: the reason why all writes fail at present. ``before_change`` is called before each
    change, and may end the process there.
    """

    def __init__(self, room: int = 1 << 62) -> None:
        self.room = room
        self.refusal: type[IsologError] | None = None
        self.forces = 0
        self.before_change: Callable[[], None] = lambda: None
        self._names: dict[Path, _Content] = {}
        self._forced_names: dict[Path, _Content] = {}
        self._renamings: list[_Renaming] = []
        self._directories: set[Path] = set()
        self._forced_directories: set[Path] = set()
        self._failing = 0
        self._life = 0

    # -- the disk that a log sees -----------------------------------------------------------------

    def open(self, path: Path) -> SimulatedFile:
        return SimulatedFile(self, path)

    def create(self, path: Path) -> SimulatedFile:
        self._exists(path.parent)
        content = _Content()
        self._rename(_Renaming(path, content))
        return SimulatedFile(self, path)

    def map(self, path: Path) -> pa.Buffer:
        return self.content(path).view()

    def read_stored(self, path: Path, position: int, length: int) -> pa.Buffer:
        return self.content(path).view(position, length)

    def size(self, path: Path) -> int:
        return self.content(path).size

    def stored_size(self, path: Path) -> int:
        return self.size(path)

    def identity(self, path: Path) -> tuple[int, int]:
        return 0, self.content(path).number

    def stamp(self, path: Path) -> str:
        return "of the simulator, which copies no files"

    def names(self, directory: Path) -> list[str]:
        found = {path.name for path in self._names if path.parent == directory}
        return sorted(found | {each.name for each in self._directories if each.parent == directory})

    def make_directory(self, path: Path, *, forced: bool = True) -> None:
        if not forced and path.parent in self._directories:
            self._directories.add(path)
            return
        for each in reversed([path, *path.parents]):
            if not (each in self._directories and each in self._forced_directories):
                self._directories.add(each)
                self.sync_directory(each.parent)

    def write_whole(self, path: Path, parts: Sequence[Part]) -> None:
        self._exists(path.parent)
        data = b"".join(bytes(memoryview(part)) for part in parts)
        self.take_room(path, len(data))
        self._rename(_Renaming(path, _Content(data)))

    def rename(self, path: Path, new: Path) -> None:
        self._exists(new.parent)
        self._rename(_Renaming(new, self.content(path), freed=path))

    def link(self, path: Path, new: Path) -> None:
        self._exists(new.parent)
        self._rename(_Renaming(new, self.content(path)))

    def remove(self, path: Path) -> None:
        if path in self._names:
            self._rename(_Renaming(path, None))

    def remove_tree(self, path: Path) -> None:
        for each in [each for each in self._names if path in each.parents]:
            self._rename(_Renaming(each, None))
        self._directories = {each for each in self._directories if not _is_below(each, path)}
        above = next((each for each in path.parents if each in self._directories), None)
        if above is not None:
            self.sync_directory(above)

    def remove_empty_directory(self, path: Path) -> None:
        if not self.names(path):
            self._directories.discard(path)

    def sync_directory(self, path: Path) -> None:
        self.may_fail(path)
        self._sync(path)

    # -- faults -----------------------------------------------------------------------------------

    def crash(self, chance: random.Random) -> None:
        """Cut the power: chance decides which unsynced changes survive.

        Open files cannot be used any more: their process has ended.
        """
        self._life += 1
        self._failing = 0
        mode = chance.choice(["none", "prefix", "subset", "all"])
        kept = self._renamings
        if mode == "none":
            kept = []
        elif mode == "prefix":
            kept = kept[: chance.randrange(len(kept) + 1)]
        elif mode == "subset":
            kept = [each for each in kept if chance.random() < 0.5]
        names = dict(self._forced_names)
        for each in kept:
            each.apply(names)
        self._directories = set(self._forced_directories)
        names = {path: each for path, each in names.items() if path.parent in self._directories}
        self._names = {path: _Content(each.after_a_crash(chance)) for path, each in names.items()}
        self._forced_names = dict(self._names)
        self._renamings = []

    def kill(self) -> None:
        """The process ends and the machine continues: the next process finds all writes."""
        self._life += 1
        self._failing = 0

    def fail_next_force(self, times: int = 1) -> None:
        """The next fsyncs fail, of a file or of a directory. Their data is lost."""
        self._failing += times

    def stop_failing(self) -> None:
        """End the failures of fsyncs."""
        self._failing = 0

    def flip(self, path: Path, position: int, bit: int) -> None:
        """One bit rots."""
        self.content(path).flip(position, bit)

    def files(self) -> dict[Path, bytes]:
        """All files, as readers see them."""
        return {path: content.read() for path, content in sorted(self._names.items())}

    def forced(self, path: Path) -> bytes:
        """The synced bytes of a file."""
        found = self._forced_names.get(path)
        kept = found is not None and path.parent in self._forced_directories
        return bytes(found.forced) if found is not None and kept else b""

    # -- for its files -----------------------------------------------------------------------------

    @property
    def life(self) -> int:
        """The number of ends of the process that uses the disk."""
        return self._life

    def content(self, path: Path) -> _Content:
        found = self._names.get(path)
        if found is None:
            raise StorageFailure(f"{path}: no such file")
        return found

    def take_room(self, path: Path, wanted: int) -> None:
        if self.refusal is not None:
            raise self.refusal(f"{path}: the disk refuses the write")
        if wanted > self.room:
            raise DiskFull(f"no room to write {path}")
        self.room -= wanted

    def may_fail(self, path: Path) -> None:
        self.before_change()
        self.forces += 1
        if self._failing:
            self._failing -= 1
            raise StorageFailure(f"{path}: Input/output error", unforced=True)

    def _exists(self, directory: Path) -> None:
        if directory not in self._directories:
            raise StorageFailure(f"{directory}: no such directory")

    def _rename(self, change: _Renaming) -> None:
        self.before_change()
        change.apply(self._names)
        self._renamings.append(change)

    def _sync(self, directory: Path) -> None:
        """A journal is written as a whole: what came before a forced change is forced with it."""
        later = [number for number, each in enumerate(self._renamings) if each.touches(directory)]
        if later:
            for each in self._renamings[: later[-1] + 1]:
                each.apply(self._forced_names)
            del self._renamings[: later[-1] + 1]
        forced = self._forced_directories
        gone = {each for each in forced - self._directories if each.parent == directory}
        below = {each for each in self._directories if each.parent == directory}
        self._forced_directories = below | {
            each for each in forced if not any(_is_below(each, top) for top in gone)
        }


class SimulatedFile(DiskFile):
    """A file of a simulated disk, as one process has it open."""

    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.life
        self._closed = False
        self._number = 0  # of the content that was opened

    def write(self, position: int, *parts: Part) -> None:
        content = self._content()
        whole = b"".join(parts)
        here = max(0, content.size - position)  # overwritten bytes need no room
        room = 0 if self._disk.refusal else here + self._disk.room
        if len(whole) > room:  # a real disk takes the bytes that fit, and then fails
            self._put(content, position, whole[:room])
        self._disk.take_room(self._path, max(0, len(whole) - here))
        self._put(content, position, whole)

    def cut(self, size: int) -> None:
        content = self._content()
        content.resize(size)
        content.pending.append(_Resize(size))

    def read(self, position: int, length: int) -> pa.Buffer | None:
        return None if self._closed else self._content().view(position, length)

    def flush(self) -> None:
        content = self._content()
        try:
            self._disk.may_fail(self._path)
        except StorageFailure:
            content.pending.clear()  # clean after this, and only in memory
            raise
        content.force_pending()

    def identity(self) -> tuple[int, int]:
        return 0, self._number or self._content().number

    def close(self) -> None:
        self._closed = True

    def _put(self, content: _Content, position: int, data: bytes) -> None:
        if data:
            self._disk.before_change()
            content.write(position, data)
            content.pending.append(_Write(position, data))

    def _content(self) -> _Content:
        if self._closed or self._life != self._disk.life:
            raise ValueError(f"{self._path} is closed")
        content = self._disk.content(self._path)
        self._number = self._number or content.number
        return content
