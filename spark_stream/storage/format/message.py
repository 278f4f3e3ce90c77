"""An encoded batch: bytes in one piece, or in several that are written one after the other.

A large batch is written from where its columns lie in memory. Joining them first would take as much
memory again, and a good part of the time that the writing takes.
"""

from __future__ import annotations

from typing import Final, Self, TypeAlias

import google_crc32c
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import schema_length

Part: TypeAlias = pa.Buffer | bytes

APART_BYTES_MIN: Final = 2 << 20  # smaller ones are joined within the processor's cache
_PART_BYTES_MIN: Final = 4 << 10  # on average; smaller parts are joined as well


class EncodedBatch(Struct):
    """The parts, one after the other; ``size`` is their total size in bytes."""

    parts: tuple[Part, ...]
    size: int

    @classmethod
    def of(cls, part: Part) -> Self:
        """Make a message of one piece."""
        return cls((part,), len(part))

    def joined(self) -> pa.Buffer:
        """Return the same bytes in one piece."""
        parts = self.parts
        return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))

    def crc(self) -> int:
        """Return the CRC-32C (Castagnoli) of the bytes, unsigned."""
        found = 0
        for part in self.parts:
            found = int(google_crc32c.extend(found, part))
        return found


def uncompressed(batch: pa.RecordBatch, apart_bytes_min: int = APART_BYTES_MIN) -> EncodedBatch:
    """Encode the batch as an IPC message, without copying the values of a large one.

    ``apart_bytes_min``: the size in bytes from which a batch is large.
    """
    if batch.get_total_buffer_size() < apart_bytes_min:
        return EncodedBatch.of(batch.serialize())
    sink = _Sink()
    pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema).write_batch(batch)
    parts = sink.parts
    before = schema_length(pa.py_buffer(b"".join(parts[:2])))
    while before > 0:  # Arrow writes the schema first, in parts of its own
        before -= len(parts.pop(0))
    size = sum(map(len, parts))
    if before or size < len(parts) * _PART_BYTES_MIN:
        return EncodedBatch.of(batch.serialize())
    return EncodedBatch(tuple(parts), size)


class _Sink:
    """A file for Arrow to write to, which keeps the parts as they come."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def write(self, part: Part) -> int:
        self.parts.append(part)
        return len(part)

    def flush(self) -> None:
        """Do nothing: no bytes wait here."""

    def close(self) -> None:
        """Do nothing: no file is open."""
