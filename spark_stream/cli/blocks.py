"""Bytes of a pipe or a file as blocks that end between two records.

From a pipe a block is what is there: a line that somebody types is handed on at once, and a fast
writer gets large blocks, which is what makes the work on them cheap.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from spark_stream.errors import RecordTooLarge
from spark_stream.wire.limits import BATCH_BYTES_MAX

BLOCK_BYTES: Final = 4 << 20
_LINGER_S: Final = 0.05
_COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

Cut = Callable[[bytearray], int]
"""Where the last whole record in these bytes ends; 0 if none does."""


class Bytes(Protocol):
    """Where bytes come from."""

    def read(self) -> bytes:
        """Some bytes, as soon as there are any; none at the end."""

    def ready(self) -> bool:
        """Whether :meth:`read` would return at once."""


class Descriptor:
    """A pipe, a terminal, or a file that is read as it is."""

    def __init__(self, number: int) -> None:
        self._number = number

    def read(self) -> bytes:
        return os.read(self._number, BLOCK_BYTES)

    def ready(self) -> bool:
        return bool(select.select([self._number], [], [], 0)[0])


class Compressed:
    """A compressed file."""

    def __init__(self, file: Path, compression: str) -> None:
        self._stream = pa.input_stream(str(file), compression=compression)

    def read(self) -> bytes:
        data: bytes = self._stream.read(BLOCK_BYTES)
        return data

    def ready(self) -> bool:
        return True


def bytes_of(file: Path | None) -> Bytes:
    """The bytes of a file, decompressed by its extension; None is standard input."""
    if file is None:
        return Descriptor(0)
    compression = _COMPRESSIONS.get(file.suffix.lower())
    if compression is not None:
        return Compressed(file, compression)
    return Descriptor(os.open(file, os.O_RDONLY | os.O_CLOEXEC))


def uncompressed_suffix(file: Path) -> str:
    """The extension that tells what is in the file: ``.csv`` of ``a.csv.gz``."""
    if file.suffix.lower() in _COMPRESSIONS:
        file = file.with_suffix("")
    return file.suffix.lower()


def blocks(source: Bytes, cut: Cut, idle: Callable[[], None]) -> Iterator[bytes]:
    """Blocks of whole records; ``idle`` is called before a wait for more.

    Raises:
        RecordTooLarge: no record ends within the largest batch.
    """
    held = bytearray()
    since = 0.0
    while data := source.read():
        if not held:
            since = time.monotonic()
        held += data
        waited = time.monotonic() - since > _LINGER_S
        if len(held) < BLOCK_BYTES and not waited and source.ready():
            continue
        if end := cut(held):
            yield bytes(held[:end])
            del held[:end]
        elif len(held) > BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"no record ends within {BATCH_BYTES_MAX} bytes",
                hint="Check --format (and the quotes of a CSV file).",
            )
        if not source.ready():
            idle()
    if held:
        yield bytes(held)


def after_line(held: bytearray) -> int:
    """The :data:`Cut` of lines."""
    return held.rfind(b"\n") + 1


def after_csv_record(held: bytearray) -> int:
    """The :data:`Cut` of CSV: a line's end that is not within quotes."""
    end = len(held)
    quotes = held.count(b'"')
    while (found := held.rfind(b"\n", 0, end)) >= 0:
        quotes -= held.count(b'"', found, end)
        if quotes % 2 == 0:
            return found + 1
        end = found
    return 0
