"""The Parquet files of a table. Each of them is opened and read here, with one error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

from spark_stream.errors import LakeUnavailable
from spark_stream.lake.delta.actions import AddFile


class TableFiles(Protocol):
    """The files of a location. Paths begin with the name of a table."""

    def open_read(self, path: str, /) -> pa.NativeFile:
        """Open a file. Raise FileNotFoundError if it does not exist."""
        ...


class DataFile:
    """A file of a table, open for reading. It is closed with its last reference.

    ``table``: the name. A read of a closed file opens it again, without another read of the footer.

    Raises, in all methods:
        LakeUnavailable: The file is damaged or missing, or the location refused.
            :func:`is_missing` detects a missing one.
    """

    def __init__(self, files: TableFiles, table: str, file: AddFile) -> None:
        self._files, self._table, self._path = files, table, unquote(file.path)
        self._file: Any = None
        self._footer: Any = None
        with self._one_error():
            opened = self._opened()
            self._footer, self._names = opened.metadata, frozenset(opened.schema_arrow.names)

    def _opened(self) -> Any:
        import pyarrow.parquet as pq  # slow, and only needed here

        if self._file is None:
            self._file = pq.ParquetFile(
                self._files.open_read(f"{self._table}/{self._path}"),
                metadata=self._footer,
                coerce_int96_timestamp_unit="us",  # Spark may write timestamps as INT96
                page_checksum_verification=True,
            )
        return self._file

    def close(self) -> None:
        """Close the file until the next read."""
        if self._file is not None:
            self._file.close(force=True)
            self._file = None

    def row_groups(self) -> list[Any]:
        """Return pyarrow's metadata of each row group."""
        with self._one_error():
            return [self._footer.row_group(at) for at in range(self._footer.num_row_groups)]

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows, with these columns or all."""
        with self._one_error():
            return self._opened().read(columns)

    def read_group(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a row group, with those of the columns that the file has."""
        with self._one_error():
            return self._opened().read_row_group(
                number, [each for each in columns if each in self._names]
            )

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
            raise LakeUnavailable(
                f"the file {self._path} of the table {self._table} cannot be read: {reason}",
                hint="Check the permissions of the file. Restore it if it is damaged or missing.",
                table=self._table,
                file=self._path,
                missing=isinstance(error, FileNotFoundError),
            ) from None


def is_missing(error: LakeUnavailable) -> bool:
    """Return whether the error is that of a file that does not exist.

    A merge and a later expiry may have removed it after its version of the table was read.
    """
    return bool(error.details.get("missing"))
