"""Arrow batches to bytes and back, and the checksums over entries. No file is touched here.

An encoded batch is one piece of bytes, or several that are written one after the other. A large
batch is written from where its columns lie in memory. To join them first would take as much memory
again, and a good part of the time of the write.

:mod:`spark_stream.batches` defines the bytes. Readers on a broker's machine use it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, Self, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import (
    as_one,
    crc32c,
    crc_of_parts,
    decode_each,
    decode_one,
    decode_run,
    facts_of,
    schema_length,
    with_facts,
)
from spark_stream.consistency.entries import CRC_SPAN, ENTRY, ENTRY_SIZE, Table
from spark_stream.errors import BrokerBusy
from spark_stream.storage.format.min_max import Layout
from spark_stream.storage.settings import Compression

Part: TypeAlias = pa.Buffer | bytes

APART_BYTES_MIN: Final = 2 << 20  # smaller batches are joined within the processor's cache
_PART_BYTES_MIN: Final = 4 << 10  # on average: smaller parts are joined too


class EncodedBatch(Struct):
    """An encoded batch: its parts in order. ``size`` is their total size in bytes."""

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
    while before > 0:  # Arrow writes the schema first, in separate parts
        before -= len(parts.pop(0))
    size = sum(map(len, parts))
    if before or size < len(parts) * _PART_BYTES_MIN:
        return EncodedBatch.of(batch.serialize())
    return EncodedBatch(tuple(parts), size)


class _Sink:
    """A file for Arrow to write to. It keeps the written parts in a list."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def write(self, part: Part) -> int:
        self.parts.append(part)
        return len(part)

    def flush(self) -> None:
        """Do nothing: no bytes are buffered."""

    def close(self) -> None:
        """Do nothing: no file is open."""


END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_UNIT: Final = 8  # bytes: the length of each message in the file is a multiple

# A few kilobytes may decompress to gigabytes: above this size, no further batch is joined.
_DECODED_BYTES_MAX: Final = 16 << 20


def sealed(packed: bytes) -> bytes:
    """Append an entry's own checksum to its bytes."""
    return packed + crc32c(packed).to_bytes(4, "little")


# A CRC is linear. So all byte strings of one length, each followed by its own CRC, have the same
# CRC, and so have runs of equally many such strings. Therefore one call can check many entries.
_BLOCK_ENTRIES: Final = 1024


@cache
def _intact_crc(entries: int) -> int:
    """Return the CRC of this many intact entries in a row."""
    return crc32c(sealed(bytes(CRC_SPAN)) * entries)


def intact_rows(table: Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the entries with a right checksum, shape (rows,)."""
    data = table.tobytes()
    value = google_crc32c.value
    actual = np.fromiter(
        (value(data[at : at + CRC_SPAN]) for at in range(0, len(data), ENTRY_SIZE)),
        dtype=np.uint32,
        count=len(table),
    )
    return np.asarray(actual == table["entry_crc"])


def intact_entries(table: Table) -> int:
    """Return the number of leading entries with a right checksum."""
    data = pa.py_buffer(np.ascontiguousarray(table).view(np.uint8))
    for first in range(0, len(table), _BLOCK_ENTRIES):
        rows = min(_BLOCK_ENTRIES, len(table) - first)
        if crc32c(data.slice(first * ENTRY_SIZE, rows * ENTRY_SIZE)) != _intact_crc(rows):
            return first + int(intact_rows(table[first : first + rows]).argmin())
    return len(table)


_FIELDS: Final[Any] = ENTRY.fields
_POSITION_AT: Final = int(_FIELDS["position"][1])
_POSITION_SIZE: Final = 8
_FEW: Final = 8  # up to this many entries, a loop is faster


@cache
def _differences() -> npt.NDArray[np.uint32]:
    """Compute the effect of each byte of an entry's position on its checksum, shape (8, 256).

    ``[byte, value]`` is the xor of the checksums of two entries whose positions differ by the xor
    ``value`` in that byte, the lowest byte first. As a CRC is linear, other bytes do not matter.
    """
    blank, found = bytearray(CRC_SPAN), np.zeros((_POSITION_SIZE, 256), np.uint32)
    nothing = crc32c(bytes(blank))
    for place in range(_POSITION_SIZE):
        for value in range(256):
            blank[_POSITION_AT + place] = value
            found[place, value] = crc32c(bytes(blank)) ^ nothing
        blank[_POSITION_AT + place] = 0
    return found


def moved(table: Table, positions: npt.NDArray[np.int64]) -> Table:
    """Return the entries with new positions, and their checksums recomputed.

    The checksums of ``table`` must be right. ``positions``: int64, shape (rows,).
    """
    if len(table) <= _FEW:
        return _moved_one_by_one(table, positions)
    found = table.copy()
    changed = (table["position"] ^ positions).astype("<i8").view(np.uint8)
    parts = _differences()[np.arange(_POSITION_SIZE), changed.reshape(-1, _POSITION_SIZE)]
    found["position"] = positions
    found["entry_crc"] ^= np.bitwise_xor.reduce(parts, axis=1)
    return found


def _moved_one_by_one(table: Table, positions: npt.NDArray[np.int64]) -> Table:
    raw, rows = table.tobytes(), []
    for number, position in enumerate(positions.tolist()):
        row = raw[number * ENTRY_SIZE : (number + 1) * ENTRY_SIZE]
        place = position.to_bytes(_POSITION_SIZE, "little")
        behind = row[_POSITION_AT + _POSITION_SIZE : CRC_SPAN]
        rows.append(sealed(row[:_POSITION_AT] + place + behind))
    return np.frombuffer(b"".join(rows), ENTRY)


def joined_runs(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Join adjacent runs (start, count). Return int64, shape (runs, 2)."""
    if len(starts) == 1:
        return np.array([[starts[0], counts[0]]])
    apart = np.flatnonzero(starts[1:] != starts[:-1] + counts[:-1]) + 1
    edges = np.concatenate((np.zeros(1, np.int64), apart))
    return np.stack((starts[edges], np.add.reduceat(counts, edges)), axis=1)


def first_broken_batch(table: Table, data: pa.Buffer, offset_in_file: int = 0) -> int:
    """Return the first row whose bytes in ``data`` fail their checksum, or the table's length.

    ``data`` is the ``.arrow`` file from ``offset_in_file`` on. It may end too early.
    """
    if len(table) > _FEW_BATCHES:
        parts = joined_runs(table["position"] - offset_in_file, table["length"])
        if len(parts) < len(table) // 2 and crc_of_parts(data, parts) == run_crc(table):
            return len(table)
    value = google_crc32c.value
    starts = (table["position"] - offset_in_file).tolist()
    rows = zip(starts, table["length"].tolist(), table["data_crc"].tolist(), strict=True)
    for row, (start, length, crc) in enumerate(rows):
        if not length:  # a marker
            continue
        if start + length > data.size or value(data.slice(start, length)) != crc:
            return row
    return len(table)


def run_crc(table: Table) -> int:
    """Combine the entries' CRCs into the CRC of their concatenated batches.

    The CRC of two joined pieces is the xor of the CRC of the second and the CRC of the first
    extended by zeros of the second's length. So no byte of a batch is read.
    """
    lengths = table["length"] // _UNIT
    behind = np.cumsum(lengths[::-1])[::-1] - lengths
    return int(np.bitwise_xor.reduce(_followed_by_zeros(table["data_crc"], behind), initial=0))


_FEW_BATCHES: Final = 128  # up to this many are checked one by one
_DIGIT_BITS: Final = 6


def _followed_by_zeros(
    crcs: npt.NDArray[np.uint32], words: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Extend each CRC by its number of zero words, given by ``words``."""
    found, place = crcs.copy(), 0
    while words.any():
        digit = words & ((1 << _DIGIT_BITS) - 1)
        found = _changed(_zeros_table(place), found, digit << 10)
        words, place = words >> _DIGIT_BITS, place + 1
    return found


def _changed(
    table: npt.NDArray[np.uint32],
    crcs: npt.NDArray[np.uint32],
    at: npt.NDArray[np.int64] | int = 0,
) -> npt.NDArray[np.uint32]:
    """Map these CRCs by the block at ``at`` of a table (``_zeros_table``)."""
    found = table[at + (crcs & 0xFF)]
    for byte in range(1, 4):
        found ^= table[at + ((crcs >> (8 * byte) & 0xFF) | byte << 8)]
    return found


# The effect of zeros that follow on a CRC depends only on their number. That number, in words of 8
# bytes, has digits of 6 bits, the lowest at place 0, and each digit is applied separately.
# The table of a place has 64 blocks of 1024 values, one block for each digit, and a block has 256
# values for each of the four bytes of a CRC, the lowest byte first. At the index
#
#     digit << 10 | byte << 8 | value
#
# is the CRC after `digit << 6 * place` words of zeros, if the CRC before them is 0 except for
# `value` in `byte`. A CRC is linear, so the results for its four bytes are combined by xor
# (`_changed`). Block 0 changes nothing, block 1 is one step, each block is one step more.
@cache
def _zeros_table(place: int) -> npt.NDArray[np.uint32]:
    """Return the table of a place, shape (65536,)."""
    values = np.arange(256, dtype=np.uint32)
    same = np.concatenate([values << 8 * byte for byte in range(4)])
    if place:
        last = _zeros_table(place - 1)[-1024:]
        one = _changed(last, _zeros_table(place - 1)[1024:2048])
    else:
        zeros = bytes(_UNIT)
        nothing = crc32c(zeros)
        one = np.array([google_crc32c.extend(int(crc), zeros) ^ nothing for crc in same], np.uint32)
    found = [same]
    for _ in range((1 << _DIGIT_BITS) - 1):
        found.append(_changed(one, found[-1]))
    return np.concatenate(found)


# If messages are this far from each other on average, they are returned one by one.
_FAR_BYTES_MIN: Final = 1 << 10


def gathered(data: pa.Buffer, starts: np.ndarray, lengths: np.ndarray) -> list[memoryview]:
    """Return the messages at these places of ``data``, as parts to be read in this order.

    The first message is at the start of ``data``, the last one at its end. Messages that are
    adjacent or far apart are not copied. All messages are padded to 8 bytes, so small ones are
    picked in units of 8 bytes, without a loop over them.
    """
    view = memoryview(data)
    gaps = starts[1:] - starts[:-1] - lengths[:-1]
    if not gaps.any():
        return [view]
    if data.size >= _FAR_BYTES_MIN * len(starts):
        places = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return [view[start:end] for start, end in places]
    wanted = np.ones(2 * len(starts) - 1, np.bool_)
    wanted[1::2] = False
    words = np.empty(len(wanted), np.int64)
    words[::2] = lengths // _UNIT
    words[1::2] = gaps // _UNIT
    return [np.frombuffer(data, np.uint64)[np.repeat(wanted, words)].data]


@dataclass(frozen=True)
class Codec:
    """The encoding of batches of one schema of a topic.

    ``version``: the number of the schema among the topic's schemas, from 0.
    """

    schema: pa.Schema
    compression: Compression = Compression.NONE
    version: int = 0

    @cached_property
    def layout(self) -> Layout:
        """The layout of the min/max statistics of a batch."""
        return Layout(self.schema)

    @property
    def is_plain(self) -> bool:
        """Whether messages are not compressed."""
        return self.compression is Compression.NONE

    def header(self, facts: dict[str, str]) -> bytes:
        """Build a segment's first message, its schema, with ``facts`` in the schema's metadata.

        The names of all facts start with ``isolog.``. A checksum over them is added to them.
        """
        return with_facts(self.schema, facts)

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        """Encode one batch as an encapsulated IPC message, padded to 8 bytes.

        Raises:
            BrokerBusy: there is not enough memory.
        """
        try:
            return self._encoded(batch)
        except MemoryError:
            raise BrokerBusy(f"no memory to encode a batch of {batch.nbytes} bytes") from None

    def _encoded(self, batch: pa.RecordBatch) -> EncodedBatch:
        if self.compression is Compression.NONE:
            return uncompressed(batch)
        options = pa.ipc.IpcWriteOptions(compression=str(self.compression))
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, self.schema, options=options)
        writer.write_batch(batch)
        written = sink.getvalue()
        # The writer puts the schema message first, at creation or now, depending on the release.
        return EncodedBatch.of(written.slice(schema_length(written)))

    def decode(
        self, messages: Sequence[memoryview], entries: int, columns: Sequence[str] | None
    ) -> tuple[pa.RecordBatch, int]:
        """Decode ``entries`` messages into one batch. Return it and the number of its messages.

        ``messages`` are their bytes, in any parts. A single uncompressed message is decoded in
        place: the batch is a view of it. Of compressed messages only the first few are decoded, so
        that the batch stays small in memory.
        """
        if self.compression is Compression.NONE:
            if entries > 1:
                return decode_run(messages, self.schema, columns), entries
            (message,) = messages
            return decode_one(message, self.schema, columns), 1
        batches, size = [], 0
        for batch in decode_each(messages, self.schema, columns):
            batches.append(batch)
            size += batch.nbytes
            if size >= _DECODED_BYTES_MAX:
                break
        return as_one(pa.Table.from_batches(batches), columns), len(batches)

    def describes(self, header: pa.Buffer) -> bool:
        """Return whether this is an intact schema message with this codec's schema."""
        return facts_of(header) is not None and self.schema.equals(pa.ipc.read_schema(header))
