"""The files of a lake's location. Paths begin with the name of a table, and have ``/`` between.

A version of a table is a file that must not exist yet: :meth:`LakeStore.put_if_absent`. On a local
file system that is a complete temporary file, and a hard link with the final name. So a reader
never sees a part of a version.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from urllib.parse import urlsplit

import pyarrow as pa

from spark_stream.errors import LakeUnavailable, Unsupported

_TEMPORARY: Final = ".isolog-"


class LakeStore(Protocol):
    """The files of a location.

    Raises, in all methods:
        LakeUnavailable: The location did not answer, or refused.
    """

    def read(self, path: str, /) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        ...

    def put_if_absent(self, path: str, data: bytes, /) -> bool:
        """Write a file that does not exist, durably. Return whether it was written."""
        ...

    def write(self, path: str, /) -> AbstractContextManager[BinaryIO]:
        """Write a new file: a context manager. The file exists once the context ends normally."""
        ...

    def open_read(self, path: str, /) -> pa.NativeFile:
        """Open a file. Raise FileNotFoundError if it does not exist."""
        ...


def open_store(location: str) -> LakeStore:
    """Return the store of a location.

    Raises:
        Unsupported: The location is not a folder.
    """
    if urlsplit(location).scheme:
        raise Unsupported(
            f"this release writes no lake to {location}", hint="Create the lake in a folder."
        )
    return LocalStore(Path(location))


class LocalStore:
    """The files below a local folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str, /) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(self._root, error) from None

    def put_if_absent(self, path: str, data: bytes, /) -> bool:
        final = self._root / path
        try:
            if final.exists():
                return False
            with self._temporary(final) as (temporary, file):
                file.write(data)
                _sync(file)
                os.link(temporary, final)
            _sync_folder(final.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise _unavailable(self._root, error) from None
        return True

    @contextmanager
    def write(self, path: str, /) -> Iterator[BinaryIO]:
        final = self._root / path
        try:
            with self._temporary(final) as (temporary, file):
                yield file
                _sync(file)
                os.link(temporary, final)
            _sync_folder(final.parent)
        except OSError as error:
            raise _unavailable(self._root, error) from None

    def open_read(self, path: str, /) -> pa.NativeFile:
        return pa.OSFile(str(self._root / path))

    @contextmanager
    def _temporary(self, final: Path) -> Iterator[tuple[Path, BinaryIO]]:
        _make_folder(final.parent)
        temporary = final.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                yield temporary, file
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unavailable(root: Path, error: OSError) -> LakeUnavailable:
    reason = error.strerror or str(error)
    return LakeUnavailable(
        f"the lake's folder {root} refused an operation: {reason}",
        hint="Check the folder, its permissions and the free space. The worker tries again.",
    )
