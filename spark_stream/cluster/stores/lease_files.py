"""Leases of brokers on one host: a small file for each, beside the metadata store.

A renewal rewrites some bytes of an open file. It takes no lock, makes no room on the disk and waits
for no flush: a lease need not outlive the host. A new incarnation puts a new file in the place of
the old one. An incarnation that still has the old one open writes into a file without a name.

The holder keeps its file locked (flock). The kernel releases the lock when the process ends in any
way. So an unlocked file is no lease any more. A holder locks its file before it puts it in place,
so others that check the lock never block the holder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spark_stream.cluster.stores.leases import DURATION_S, Renewal, id_in_use
from spark_stream.errors import MetadataUnavailable, StorageFailure
from spark_stream.operating_system import lock

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_LENGTH_MAX: Final = 512


class LeaseFiles:
    """The board of a host: a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths: dict[str, str] = {}
        self._make_folder()

    def lock_id(self, broker_id: str, directory: Path) -> FileIdLock:
        return FileIdLock(self.folder / f"{_checked(broker_id)}.lock", broker_id, directory)

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> LeaseFile:
        self._make_folder()  # somebody may have removed it while the broker ran
        return LeaseFile(self._path(broker_id), _checked(incarnation), duration_s)

    def read(self, broker_id: str) -> Renewal | None:
        # Each broker reads all leases ten times a second.
        path = self._paths.get(broker_id)
        if path is None:
            path = self._paths[broker_id] = str(self._path(broker_id))
        try:
            while True:
                try:
                    descriptor = os.open(path, os.O_RDONLY)
                except FileNotFoundError:
                    return None
                try:
                    shown = _renewal(os.pread(descriptor, _LENGTH_MAX, 0))
                    if not lock(descriptor, shared=True):  # several processes may check together
                        return shown
                    if os.fstat(descriptor).st_nlink:  # no later file has taken its place
                        return None
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise _unavailable(path, error) from error

    def running(self) -> list[str]:
        return running_brokers(self.folder)

    def close(self) -> None:
        pass

    def _make_folder(self) -> None:
        with _named(self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)

    def _path(self, broker_id: str) -> Path:
        return self.folder / _checked(broker_id)


class LeaseFile:
    """One incarnation's file, open until it is cleared."""

    def __init__(self, path: Path, incarnation: str, duration_s: float) -> None:
        self._path = path
        self._incarnation = incarnation
        self._duration_ms = round(duration_s * 1000)
        # The same name at every start: what a crash leaves of one start, the next one removes.
        made = path.with_name(f"{path.name}.new")
        with _named(path):
            made.unlink(missing_ok=True)
            self._descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            lock(self._descriptor)  # no other process has the file yet
            self._rewrite(0)
            os.replace(made, path)

    def write(self, count: int) -> bool:
        with _named(self._path):
            if not self._is_in_place():
                return False
            self._rewrite(count)
            return True

    def clear(self) -> None:
        with _named(self._path):
            if self._descriptor >= 0:
                if self._is_in_place():
                    self._path.unlink(missing_ok=True)
                self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_in_place(self) -> bool:
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink > 0

    def _rewrite(self, count: int) -> None:
        shown = f"{self._incarnation} {count:020} {self._duration_ms}\n"
        os.pwrite(self._descriptor, shown.encode(), 0)


class FileIdLock:
    """The lock (flock) of a file that is named after the id."""

    def __init__(self, path: Path, broker_id: str, directory: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageFailure(
                f"cannot open the lock file {path}: {error.strerror}", path=str(path)
            ) from error
        if not lock(self._descriptor):
            os.close(self._descriptor)
            raise id_in_use(broker_id, directory)

    def release(self) -> None:
        os.close(self._descriptor)


def running_brokers(folder: Path) -> list[str]:
    """Return the ids of the brokers whose processes hold their id's lock in the lease folder."""
    found = []
    for path in sorted(folder.glob("*.lock")):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                if not lock(descriptor, shared=True):
                    found.append(path.stem)
            finally:
                os.close(descriptor)
    return found


def _renewal(content: bytes) -> Renewal:
    line, _, _ = content.decode("ascii", "replace").partition("\n")
    incarnation, *numbers = line.split(" ")
    if len(numbers) == 2 and all(each.isdecimal() for each in numbers):
        return Renewal(incarnation, int(numbers[0]), int(numbers[1]) / 1000)
    # Somebody has tampered with the file: it is nobody's lease, and is not renewed.
    return Renewal("", 0, DURATION_S)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a part of a file's name")
    return name


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(str(path), error) from error


def _unavailable(path: str, error: OSError) -> MetadataUnavailable:
    return MetadataUnavailable(
        f"lease {path}: {error.strerror}",
        hint="The folder of the lease must exist, and the broker must be allowed to write to it.",
        path=path,
    )
