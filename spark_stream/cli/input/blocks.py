"""Cut the bytes of a pipe or a file into blocks that end between two records.

A block of a pipe is what is available: a line that a user types is passed on at once, and a fast
writer gets large blocks, which are cheap to process.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from spark_stream.errors import RecordTooLarge
from spark_stream.wire.limits import BATCH_BYTES_MAX

BLOCK_BYTES: Final = 4 << 20
_LINGER_S: Final = 0.05
COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

Cut = Callable[[bytearray, bool], int]
"""From bytes, and whether the input has ended, to where the last whole record ends, or 0."""

Idle = Callable[[int | None], None]
"""Called before a wait for more of the input, with the descriptor that it comes from."""


class Bytes(Protocol):
    """Where bytes come from."""

    def read(self) -> bytes:
        """Return some bytes as soon as there are any; none at the end."""

    def ready(self) -> bool:
        """Return whether :meth:`read` would return at once."""

    def fileno(self) -> int | None:
        """Return the descriptor to wait for; None if :meth:`read` never waits."""

    def part(self) -> float | None:
        """Return the fraction of the bytes that was read, 0 to 1; None if it is unknown."""


class PlainInput:
    """A pipe, a terminal, or an uncompressed file."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._size = os.fstat(number).st_size  # 0 for a pipe

    def read(self) -> bytes:
        return os.read(self._number, BLOCK_BYTES)

    def ready(self) -> bool:
        return bool(select.select([self._number], [], [], 0)[0])

    def fileno(self) -> int:
        return self._number

    def part(self) -> float | None:
        if not self._size:
            return None
        return min(1.0, os.lseek(self._number, 0, os.SEEK_CUR) / self._size)


class Compressed:
    """A compressed file."""

    def __init__(self, file: Path, compression: str) -> None:
        self._file = pa.OSFile(str(file))
        self._stream = pa.CompressedInputStream(self._file, compression)

    def read(self) -> bytes:
        data: bytes = self._stream.read(BLOCK_BYTES)
        return data

    def ready(self) -> bool:
        return True

    def fileno(self) -> None:
        return None

    def part(self) -> float | None:
        return float(self._file.tell() / max(1, self._file.size()))


@contextmanager
def bytes_of(file: Path | None) -> Iterator[Bytes]:
    """Open a file, decompressing by its extension; None is standard input."""
    if file is None:
        yield PlainInput(0)
        return
    compression = COMPRESSIONS.get(file.suffix.lower())
    if compression is not None:
        yield Compressed(file, compression)
        return
    number = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield PlainInput(number)
    finally:
        os.close(number)


def uncompressed_suffix(file: Path) -> str:
    """Return the extension without that of a compression: ``.csv`` of ``a.csv.gz``."""
    if file.suffix.lower() in COMPRESSIONS:
        file = file.with_suffix("")
    return file.suffix.lower()


def blocks(source: Bytes, cut: Cut, idle: Idle) -> Iterator[bytes]:
    """Yield blocks of whole records; call ``idle`` before a wait for more.

    Raises:
        RecordTooLarge: no record ends within the largest batch.
        InvalidRecord: from ``cut``, for a broken record.
    """
    held = bytearray()
    since = 0.0
    enough = BLOCK_BYTES
    if not source.ready():
        idle(source.fileno())
    while data := source.read():
        if not held:
            since = time.monotonic()
        held += data
        waited = time.monotonic() - since > _LINGER_S
        if len(held) < enough and (not waited or enough > BLOCK_BYTES) and source.ready():
            continue
        if end := cut(held, False):
            yield bytes(held[:end])
            del held[:end]
            enough = BLOCK_BYTES
        elif len(held) > BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"a record is larger than {BATCH_BYTES_MAX} bytes, the most that can be written",
                hint="Check --format; if it is right, split the value.",
            )
        elif len(held) >= enough:
            enough = 2 * len(held)  # else the same bytes would be searched again and again
        if not source.ready():
            idle(source.fileno())
    while held:
        end = cut(held, True)
        yield bytes(held[:end])
        del held[:end]


def after_line(held: bytearray, last: bool) -> int:
    """Return where the last whole line ends: a :data:`Cut`."""
    return len(held) if last else held.rfind(b"\n") + 1
