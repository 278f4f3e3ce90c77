"""Lakes in object stores (S3, Google Cloud Storage, Azure), through obstore.

A version is written with ``If-None-Match: *``. obstore repeats a request whose answer was lost, and
the store then refuses the second one. So a refused put may be this worker's own: its outcome shows
in the table, as that of a lost answer.

Keys are those of the environment or the instance. ``AWS_ENDPOINT_URL`` selects another S3.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

import pyarrow as pa

from spark_stream.errors import InvalidOption, LakeUnavailable
from spark_stream.extras import install_hint
from spark_stream.lake.steps import StoredFile
from spark_stream.lake.storage.stores import first_line

_S3_KEYS: Final = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_AZURE_KEYS: Final = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_VARIABLES: Final = {
    "s3": _S3_KEYS,
    "s3a": _S3_KEYS,
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": _AZURE_KEYS,
    "abfs": _AZURE_KEYS,
    "abfss": _AZURE_KEYS,
}
"""The variables with the keys of each kind of store."""
SCHEMES: Final = frozenset(_VARIABLES)
_OF_INSTANCES: Final = (
    "/latest/api/token",
    "/latest/meta-data",
    "/computeMetadata",
    "/metadata/identity",
)
"""Paths of a cloud's service with the keys of an instance. It is used without other keys."""
_NO_BUCKET: Final = "NoSuchBucket", "ContainerNotFound"
_RETRIES_MAX: Final = 3
_RETRY: Final = timedelta(seconds=30)
_TIMEOUT: Final = "30s"


class ObjectStore:
    """The objects below an address.

    Args:
        location: For example ``s3://bucket/folder``.
        timeout: Of one request, for example ``30s``.

    Raises:
        InvalidOption: obstore is missing, or the environment has no usable setting.
    """

    def __init__(self, location: str, timeout: str = _TIMEOUT) -> None:
        try:
            self._obstore: Any = import_module("obstore")
            stores: Any = import_module("obstore.store")
            exceptions: Any = import_module("obstore.exceptions")
        except ImportError:
            raise InvalidOption(
                f"a lake at {location} needs the package obstore",
                hint=install_hint("lake"),
                option="location",
            ) from None
        self._location = location
        self._exists = exceptions.AlreadyExistsError, exceptions.PreconditionError
        self._failed = exceptions.BaseError, OSError
        self._denied = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        endpoint = _endpoint() if location.startswith("s3") else ""
        options = {"timeout": timeout, "connect_timeout": "10s"}
        if endpoint.startswith("http://"):
            options["allow_http"] = "true"
        try:
            self._store = stores.from_url(
                location,
                client_options=options,
                retry_config={"max_retries": _RETRIES_MAX, "retry_timeout": _RETRY},
            )
        except (exceptions.BaseError, ValueError) as error:
            raise InvalidOption(
                f"cannot open the lake's location {location}: {first_line(error)}",
                hint="Check the address, and the variables of the environment.",
                option="location",
            ) from None

    def read(self, path: str, /) -> bytes | None:
        try:
            return bytes(self._obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except self._failed as error:
            raise self._unavailable(error) from None

    def put_if_absent(self, path: str, data: bytes, /) -> bool:
        try:
            self._obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except self._exists:
            return False
        except self._failed as error:
            raise self._unavailable(error) from None
        return True

    def put(self, path: str, data: bytes, /) -> None:
        try:
            self._obstore.put(self._store, path, data, use_multipart=False)
        except self._failed as error:
            raise self._unavailable(error) from None

    @contextmanager
    def write(self, path: str, /) -> Iterator[BinaryIO]:
        try:
            inner = self._obstore.open_writer(self._store, path)
            yield cast(BinaryIO, _Upload(inner))
            inner.close()  # without it, no object exists
        except self._failed as error:
            raise self._unavailable(error) from None

    def open_read(self, path: str, /) -> pa.NativeFile:
        return pa.PythonFile(_Ranges(self, path, self._size(path)), mode="r")

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object. Raise FileNotFoundError if it does not exist."""
        try:
            found = self._obstore.get_range(self._store, path, start=start, length=length)
        except FileNotFoundError:
            raise
        except self._failed as error:
            raise self._unavailable(error) from None
        return bytes(found)

    def list(self, prefix: str, /, after: str = "") -> Iterator[StoredFile]:
        # A prefix of an object store ends at a slash.
        folder = prefix.rpartition("/")[0] or None
        try:
            for page in self._obstore.list(self._store, folder, offset=after or None):
                for each in page:
                    if each["path"].startswith(prefix):
                        modified_ms = int(each["last_modified"].timestamp() * 1000)
                        yield StoredFile(each["path"], each["size"], modified_ms)
        except self._failed as error:
            raise self._unavailable(error) from None

    def size(self, path: str, /) -> int | None:
        try:
            return self._size(path)
        except FileNotFoundError:
            return None

    def _size(self, path: str) -> int:
        """Return the size of an object. Raise FileNotFoundError if it does not exist."""
        try:
            return int(self._obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            raise
        except self._failed as error:
            raise self._unavailable(error) from None

    def sync(self, folder: str, /) -> None:
        """Do nothing: an object that is listed is durable."""

    def delete(self, path: str, /) -> None:
        try:
            with suppress(FileNotFoundError):
                self._obstore.delete(self._store, path)
        except self._failed as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> LakeUnavailable:
        text, where = str(error), urlsplit(self._location)
        variables = _VARIABLES[where.scheme]
        fault = f"the lake's location {self._location} refused an operation: {first_line(error)}"
        hint = f"Check the address, the network and the keys ({variables})."
        if any(each in text for each in _OF_INSTANCES):
            fault = f"there are no keys for {self._location}: {first_line(error)}"
            hint = f"Set {variables} in the environment of this process, or give its host a role."
        elif isinstance(error, FileNotFoundError) or any(each in text for each in _NO_BUCKET):
            fault = f"the bucket {where.netloc} does not exist: {first_line(error)}"
            hint = "Create it, or correct the location. AWS_ENDPOINT_URL selects another S3."
        elif isinstance(error, self._denied):
            hint = f"The keys do not permit it. Check {variables}, and the rules of the bucket."
        return LakeUnavailable(fault, hint=hint)


def _endpoint() -> str:
    """Return the address of another S3, or ""."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if (text := os.environ.get(name)) is None:
            continue
        if not text.startswith(("http://", "https://")):  # obstore would panic
            raise InvalidOption(
                f"the variable {name} is no address: {text!r}",
                hint="Set it to one that begins with http:// or https://, or unset it.",
                option=name,
            )
        return text
    return ""


class _Upload(io.RawIOBase):
    """A new object as a file, with its size so far. It is complete once its writer is closed."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        self._inner.write(content)
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size


class _Ranges(io.RawIOBase):
    """An object as a file with random access."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        self._store, self._path, self._size = store, path, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, length: int = -1, /) -> bytes:
        left = max(0, self._size - self._position)
        length = left if length is None or length < 0 else min(length, left)
        data = self._store.read_range(self._path, self._position, length) if length else b""
        self._position += len(data)
        return data
