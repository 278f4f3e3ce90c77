"""The files of a lake's location. Paths begin with the name of a table, and have ``/`` between.

A version of a table is a file that must not exist yet: :meth:`LakeStore.put_if_absent`. On a local
file system that is a complete temporary file, and a hard link with the final name. So a reader
never sees a part of a version. Object stores have a condition for it (``objects.py``).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_stream.directories import has_keys
from spark_stream.errors import InvalidOption, LakeUnavailable, Unsupported
from spark_stream.lake.cleaning import TEMPORARY
from spark_stream.lake.steps import StoredFile
from spark_stream.operating_system import sync


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

    def put(self, path: str, data: bytes, /) -> None:
        """Write or replace a small file, durably."""
        ...

    def write(self, path: str, /) -> AbstractContextManager[BinaryIO]:
        """Write a new file: a context manager. The file exists once the context ends normally."""
        ...

    def list(self, prefix: str, /, after: str = "") -> Iterable[StoredFile]:
        """Yield the files whose paths begin with a prefix and follow ``after``, in any order."""
        ...

    def delete(self, path: str, /) -> None:
        """Delete a file, if it exists."""
        ...

    def size(self, path: str, /) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        ...

    def sync(self, folder: str, /) -> None:
        """Make the files that a folder lists durable, also those of other writers."""
        ...

    def open_read(self, path: str, /) -> pa.NativeFile:
        """Open a file. Raise FileNotFoundError if it does not exist."""
        ...


def open_store(location: str) -> LakeStore:
    """Return the store of a location: a folder, or the address of an object store.

    Raises:
        InvalidOption: The address has keys or parameters, or a package is missing.
        Unsupported: The address is of an unknown kind.
    """
    parts = urlsplit(location)
    if not parts.scheme:
        return LocalStore(Path(location))
    if has_keys(location):
        raise InvalidOption(
            "the location of a lake has keys or parameters, which all users of the log can read",
            hint="Set them in the environment, for example AWS_ACCESS_KEY_ID.",
            option="location",
        )
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)))
    from spark_stream.lake.storage.objects import SCHEMES, ObjectStore

    if parts.scheme not in SCHEMES:
        raise Unsupported(
            f"this release writes no lake to {location}",
            hint=f"Use a folder, or an address that begins with {', '.join(sorted(SCHEMES))}.",
        )
    return ObjectStore(location)


def check_store(store: LakeStore) -> None:
    """Check that a location can be written, and refuses a file that exists.

    Raises:
        Unsupported: A second file replaced the first one, so that commits would be lost.
        LakeUnavailable: The location did not answer, or refused.
    """
    path = f"_check-{secrets.token_hex(8)}"
    try:
        store.put_if_absent(path, b"1")
        if store.put_if_absent(path, b"2") or store.read(path) != b"1":
            raise Unsupported(
                "the location of the lake replaces files that exist",
                hint="Use a store with conditional writes (If-None-Match).",
            )
    finally:
        with suppress(LakeUnavailable):
            store.delete(path)


class LocalStore:
    """The files below a local folder.

    A folder of this store is created once. If it disappears, such as with the disk that it is on, a
    write into it fails: a new folder would hide files below the place of the disk.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders = set[Path]()

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
                try:
                    os.link(temporary, final)
                except FileExistsError:
                    return False
            _sync_folder(final.parent)
        except OSError as error:
            raise _unavailable(self._root, error) from None
        return True

    def put(self, path: str, data: bytes, /) -> None:
        final = self._root / path
        try:
            with self._temporary(final) as (temporary, file):
                file.write(data)
                _sync(file)
                temporary.replace(final)
            _sync_folder(final.parent)
        except OSError as error:
            raise _unavailable(self._root, error) from None

    def list(self, prefix: str, /, after: str = "") -> Iterator[StoredFile]:
        found = list[StoredFile]()
        try:
            for folder, _, names in os.walk(self._root / prefix.rpartition("/")[0], onerror=_raise):
                for name in names:
                    file = Path(folder, name)
                    path = file.relative_to(self._root).as_posix()
                    if path.startswith(prefix) and path > after:
                        with suppress(FileNotFoundError):
                            state = file.stat()
                            modified_ms = state.st_mtime_ns // 1_000_000
                            found.append(StoredFile(path, state.st_size, modified_ms))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unavailable(self._root, error) from None
        yield from found

    def delete(self, path: str, /) -> None:
        try:
            (self._root / path).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(self._root, error) from None

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

    def size(self, path: str, /) -> int | None:
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(self._root, error) from None

    def sync(self, folder: str, /) -> None:
        try:
            _sync_folder(self._root / folder)
        except OSError as error:
            raise _unavailable(self._root, error) from None

    def open_read(self, path: str, /) -> pa.NativeFile:
        return pa.OSFile(str(self._root / path))

    @contextmanager
    def _temporary(self, final: Path) -> Iterator[tuple[Path, BinaryIO]]:
        if final.parent not in self._folders:
            _make_folder(final.parent)
            self._folders.add(final.parent)
        temporary = final.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                yield temporary, file
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _raise(error: OSError) -> None:
    raise error


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync(file: BinaryIO) -> None:
    file.flush()
    sync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def first_line(error: Exception) -> str:
    """Return the first line of an error of a library, without the body of an answer in XML.

    Some libraries add their own state below it.
    """
    lines = str(error).strip().splitlines()
    return lines[0].partition(": <?xml")[0] if lines else type(error).__name__


def _unavailable(root: Path, error: OSError) -> LakeUnavailable:
    reason = error.strerror or str(error)
    return LakeUnavailable(
        f"the lake's folder {root} refused an operation: {reason}",
        hint="Check the folder, its permissions and the free space.",
    )
