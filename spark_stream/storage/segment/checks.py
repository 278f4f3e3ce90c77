"""Checks that segments still have the written bytes.

The bytes are read from the disk itself, not from memory, where a good page may hide a damaged
sector. (If the file system does not support this, they come through the page cache.) They are read
in small pieces, at the pace of the caller. A failed check is only a
suspicion: since the segment was looked up, the log may have been truncated or a file replaced. So
the holder of the partition's lock checks once more (:func:`is_sound`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.consistency.entries import ENTRY_SIZE, Table
from spark_stream.consistency.ids import EntryIndex
from spark_stream.errors import StorageFailure
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.format.codec import first_broken_batch, intact_entries
from spark_stream.storage.segment.segment import Segment

_PIECE_BYTES: Final = 1 << 20  # at least one batch, which may be larger
_PIECE_ENTRIES: Final = 1 << 14


class Suspect(Struct, frozen=True, eq=False):
    """An entry that failed its check, or its batch did. ``path``: the segment's ``.arrow`` file."""

    entry: EntryIndex
    path: Path


class CheckedPiece(Struct, frozen=True, eq=False):
    """A piece that was read: ``size`` bytes of batches, and the entries that failed a check."""

    size: int
    suspects: tuple[Suspect, ...]


def pieces(disk: Disk, segments: Sequence[Segment]) -> Iterator[CheckedPiece]:
    """Read these segments once, piece by piece, each up to its end at the time of its turn."""
    for segment in segments:
        table = segment.table
        low = 0
        while low < len(table):
            high = _piece_end(table, low)
            failed = _failed_rows(disk, segment, low, high)
            size = int(table["length"][low:high].sum()) if low not in failed else 0
            first, path = segment.first.entry, segment.name.arrow
            yield CheckedPiece(
                size, tuple(Suspect(EntryIndex(first + row), path) for row in failed)
            )
            low = high


def is_sound(disk: Disk, segment: Segment, entry: EntryIndex) -> bool:
    """Return whether the checksums of an entry of the segment and of its batch are right."""
    row = entry - segment.first.entry
    return not _failed_rows(disk, segment, row, row + 1)


def _piece_end(table: Table, low: int) -> int:
    """Return the row after the last one of the piece that begins with row ``low``."""
    rows = table[low : low + _PIECE_ENTRIES]
    rows = rows[: intact_entries(rows)]  # the position in a damaged entry may be wrong
    ends = rows["position"] + rows["length"]
    most = int(table[low]["position"]) + _PIECE_BYTES if len(rows) else 0
    return low + max(1, int(np.searchsorted(ends, most, side="right")))


def _failed_rows(disk: Disk, segment: Segment, low: int, high: int) -> list[int]:
    """Return the rows with a wrong checksum, or with a wrong or unreadable batch."""
    rows = segment.table[low:high]
    data = None
    if intact_entries(rows) == len(rows):
        position = int(rows[0]["position"])
        length = int(rows[-1]["position"] + rows[-1]["length"]) - position
        with suppress(StorageFailure):
            entries = disk.read_stored(segment.name.entries, low * ENTRY_SIZE, rows.nbytes)
            if entries.equals(pa.py_buffer(rows.tobytes())):
                data = disk.read_stored(segment.name.arrow, position, length)
    if data is None:
        if len(rows) == 1:
            return [low]
        middle = (low + high) // 2
        return [
            *_failed_rows(disk, segment, low, middle),
            *_failed_rows(disk, segment, middle, high),
        ]
    failed: list[int] = []
    at = 0
    while (at := at + first_broken_batch(rows[at:], data, position)) < len(rows):
        failed.append(low + at)
        at += 1
    return failed
