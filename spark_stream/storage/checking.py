"""Reading closed segments to see whether they still are what was written.

The bytes come from the disk itself, not from memory, where a page that is good may hide a sector
that is not. They come in small pieces, and the caller decides how fast. What fails here is a
suspicion only: the log may have been cut back, or a file replaced, since the segment was looked up.
Whoever holds the partition's lock looks once more (:func:`is_sound`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_stream.consistency.entries import Table
from spark_stream.errors import StorageFailure
from spark_stream.storage.codec import first_broken_batch
from spark_stream.storage.disk import Disk
from spark_stream.storage.segment import Segment

_PIECE_BYTES: Final = 1 << 20  # at least one batch, which may be larger


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """A batch that failed: its segment, and its row in the table there."""

    segment: Segment
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """So many bytes were read; these batches of them failed."""

    size: int
    suspects: tuple[Suspect, ...]


def pieces(disk: Disk, segments: Sequence[Segment]) -> Iterator[Piece]:
    """Reads all batches of these segments once, piece by piece."""
    for segment in segments:
        table = segment.table
        low = 0
        while low < len(table):
            high = _piece_end(table, low)
            failed = _failed_rows(disk, segment, low, high)
            size = int(table["length"][low:high].sum())
            yield Piece(size, tuple(Suspect(segment, row) for row in failed))
            low = high


def is_sound(disk: Disk, suspect: Suspect) -> bool:
    """Whether the batch has its checksum after all."""
    return not _failed_rows(disk, suspect.segment, suspect.row, suspect.row + 1)


def _piece_end(table: Table, low: int) -> int:
    """Behind the last row of the piece that begins with row ``low``."""
    start = int(table[low]["position"])
    ends = table["position"][low:] + table["length"][low:]
    return max(low + 1, low + int(np.searchsorted(ends, start + _PIECE_BYTES, side="right")))


def _failed_rows(disk: Disk, segment: Segment, low: int, high: int) -> list[int]:
    """Which of these rows have a batch that fails its checksum, or that the disk does not give."""
    rows = segment.table[low:high]
    position = int(rows[0]["position"])
    length = int(rows[-1]["position"] + rows[-1]["length"]) - position
    try:
        data = disk.read_stored(segment.name.arrow, position, length)
    except StorageFailure:
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
