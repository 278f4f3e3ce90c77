"""Failing disks: one is full, one refuses an operation, one dies with its process.

All of them are the operating system's disk (real files) with a fault in front of it. A failed write
has written a part, as on real disks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from isolog.errors import DiskFull, StorageFailure
from spark_stream.storage.disk.disk import DiskFile, OsDisk
from spark_stream.storage.format.codec import Part


class Died(BaseException):
    """The death of the process. Handlers of errors must not catch it."""


def dying_in(changes: int) -> Callable[[], None]:
    """Return a function to call before each change. It lets the process die before one of them."""
    left = iter(range(changes))

    def change() -> None:
        if next(left, None) is None:
            raise Died

    return change


class FaultyFile:
    """A file whose writes, cuts and flushes call the disk's hooks first."""

    def __init__(self, disk: FaultyDisk, path: Path, file: DiskFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def write(self, position: int, *parts: Part) -> None:
        whole = b"".join(parts)
        allowed = self._disk.before_write(self._path, len(whole))
        self._file.write(position, whole[:allowed])
        self._disk.after_write(self._path, allowed, len(whole))

    def cut(self, size: int) -> None:
        self._disk.before("cut", self._path)
        self._file.cut(size)

    def read(self, position: int, length: int) -> pa.Buffer | None:
        return self._file.read(position, length)

    def flush(self) -> None:
        self._disk.before("flush", self._path)
        self._file.flush()

    def identity(self) -> tuple[int, int]:
        return self._file.identity()

    def close(self) -> None:
        self._file.close()


class FaultyDisk(OsDisk):
    """The operating system's disk, with hooks around each operation that changes something."""

    def before(self, operation: str, path: Path) -> None:
        """Called before an operation. It may raise."""

    def before_write(self, path: Path, length: int) -> int:
        """The number of bytes of a write that are written before ``after_write``."""
        self.before("write", path)
        return length

    def after_write(self, path: Path, written: int, wanted: int) -> None:
        """Called after a write. It raises if the write was not whole."""

    def open(self, path: Path) -> FaultyFile:
        return FaultyFile(self, path, super().open(path))

    def create(self, path: Path) -> FaultyFile:
        self.before("create", path)
        super().create(path)
        return self.open(path)

    def write_whole(self, path: Path, parts: Sequence[Part]) -> None:
        length = sum(len(memoryview(part)) for part in parts)
        written = self.before_write(path, length)
        if written < length:
            fresh = path.with_name(path.name + ".new")
            fresh.write_bytes(b"".join(bytes(memoryview(part)) for part in parts)[:written])
        else:
            super().write_whole(path, parts)
        self.after_write(path, written, length)

    def rename(self, path: Path, new: Path) -> None:
        self.before("rename", path)
        super().rename(path, new)

    def remove(self, path: Path) -> None:
        self.before("remove", path)
        super().remove(path)

    def make_directory(self, path: Path, *, forced: bool = True) -> None:
        self.before("make_directory", path)
        super().make_directory(path, forced=forced)

    def sync_directory(self, path: Path) -> None:
        self.before("sync_directory", path)
        super().sync_directory(path)


class SmallDisk(FaultyDisk):
    """A disk with ``room`` bytes that then fails like a full one: a part of the write is done."""

    def __init__(self, room: int = 1 << 40) -> None:
        super().__init__()
        self.room = room

    def before_write(self, path: Path, length: int) -> int:
        taken = min(length, self.room)
        self.room -= taken
        return taken

    def after_write(self, path: Path, written: int, wanted: int) -> None:
        if written < wanted:
            path.with_name(path.name + ".new").unlink(missing_ok=True)
            raise DiskFull(f"no room to write {path}")


class FailingDisk(FaultyDisk):
    """A disk that refuses the kind of operation in ``refused``."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: str | None = None

    def before(self, operation: str, path: Path) -> None:
        if operation == self.refused:
            raise StorageFailure(f"{path}: {operation} refused")

    def map(self, path: Path) -> pa.Buffer:
        self.before("map", path)
        return super().map(path)


class MortalDisk(FaultyDisk):
    """A disk whose process dies at the ``lives``-th operation. Half of a write is done then."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def before(self, operation: str, path: Path) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Died

    def before_write(self, path: Path, length: int) -> int:
        self.lives -= 1
        return length if self.lives >= 0 else length // 2

    def after_write(self, path: Path, written: int, wanted: int) -> None:
        if self.lives < 0:
            raise Died
