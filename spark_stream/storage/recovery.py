"""What of a segment is valid, found when a log opens, and cutting off what is not.

The log is the longest prefix whose checksums hold. The last segment is where a crash leaves torn
bytes: its batches are all checked here, and what is behind the first bad one is cut (into a folder
``cut`` beside it if intact entries were among it, so that nothing acknowledged is thrown away).
Older segments are complete: their entries are checked here, their batches when they are first read,
and damage in them is reported as a hole, never cut. Markers lost at the end of an older segment
leave no hole, for they have no offsets: the next segment's first index tells that they were there.

Order of steps in a cut: the shorter entries file replaces the longer, then the ``.arrow`` file. A
crash between them leaves bytes that no entry names: the next open cuts those.

The schema message that an ``.arrow`` file starts with is for other readers than isolog, and says
which entry an empty segment starts with. It has no entry that vouches for it: it is compared with
the topic's schema, and in the last segment written anew where it is damaged.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import (
    ENTRY,
    ENTRY_SIZE,
    Table,
    next_offset,
    valid_prefix,
)
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.leader import Position
from spark_stream.errors import DamagedSegment
from spark_stream.storage.codec import (
    END_OF_STREAM,
    Codec,
    facts_of,
    first_broken_batch,
    header_length,
    intact_entries,
    intact_rows,
)
from spark_stream.storage.disk import Disk
from spark_stream.storage.segment import ActiveSegment, Segment, SegmentName, header_of


@dataclass(frozen=True, slots=True)
class Cut:
    """What recovery removed from the end of a log, or found damaged in the middle of it."""

    segment: str
    records_lost: int
    entries_lost: int
    bytes_lost: int
    kept_aside: bool
    reason: str

    def __str__(self) -> str:
        aside = ", kept aside in the folder `cut`" if self.kept_aside else ""
        return (
            f"{self.segment}: {self.reason}: {self.entries_lost} entries with"
            f" {self.records_lost} records ({self.bytes_lost} bytes){aside}"
        )


def open_closed(
    disk: Disk, name: SegmentName, codec: Codec, first_entry: int | None, next_base: int
) -> tuple[Segment, Cut | None]:
    """A segment that has a successor starting at offset ``next_base``."""
    present = set(disk.names(name.directory))
    complete = {name.arrow.name, name.entries.name} <= present
    told = name.entries.name in present
    whole, table = _read_table(disk, name) if told else (0, np.zeros(0, ENTRY))
    good = _good_entries(table, first_entry, name.base_offset)
    kept = table[:good]
    entry = _first_index(disk, name, kept, first_entry)
    if not complete:
        kept = kept[:0]
    segment = Segment(
        disk, name, codec, Position(EntryIndex(entry), Offset(name.base_offset)), kept
    )
    if segment.sound_end == next_base:
        return segment, None
    while len(kept) and int(kept[-1]["base_offset"] + kept[-1]["count"]) > next_base:
        kept = kept[:-1]
    holed = Segment(disk, name, codec, segment.first, kept, hole_end=next_base)
    lost = next_base - holed.sound_end
    junk = whole - len(kept) * ENTRY_SIZE
    reason = "damaged" if complete else "one of its two files is missing"
    reason += ", and reads in it will fail"
    return holed, Cut(str(name.entries), lost, max(0, len(table) - len(kept)), junk, False, reason)


def open_active(
    disk: Disk, name: SegmentName, codec: Codec, first_entry: int | None, facts: dict[str, str]
) -> tuple[ActiveSegment, Cut | None]:
    """The last segment, with everything behind its longest valid prefix cut off.

    Raises:
        DamagedSegment: its entries file is missing, or nothing tells which entry it starts with.
    """
    present = set(disk.names(name.directory))
    if name.entries.name not in present:
        raise _missing(name)
    whole, table = _read_table(disk, name)
    data = disk.map(name.arrow) if name.arrow.name in present else pa.py_buffer(b"")
    header = header_length(data)
    good = _good_entries(table, first_entry, name.base_offset)
    if good:
        ends = table["position"][:good] + table["length"][:good]
        if not (ends <= data.size).all():
            good = int((ends > data.size).argmax())
        good = first_broken_batch(table[:good], data)
    kept = table[:good]
    if not good and header is None:
        if len(table):
            raise DamagedSegment(
                f"{name.arrow}: not a segment of Arrow batches, but {name.entries} has"
                f" {len(table)} entries",
                path=str(name.arrow),
            )
        entry = _known_start(first_entry, name)
        first = Position(EntryIndex(entry), Offset(name.base_offset))
        return ActiveSegment.create(disk, name, codec, first, facts), None
    first = Position(
        EntryIndex(_first_index(disk, name, kept, first_entry)), Offset(name.base_offset)
    )
    data_end = int(kept[-1]["position"] + kept[-1]["length"]) if good else int(header or 0)
    tail = data.slice(data_end)
    cut = None
    # A mark of the end is what a roll leaves that went no further; the next append replaces it.
    ended = tail.size == 0 or tail.equals(pa.py_buffer(END_OF_STREAM))
    if whole != good * ENTRY_SIZE or not ended:
        cut = _cut(disk, name, whole, table, good, data, data_end)
    data_start = int(kept[0]["position"]) if good else int(header or 0)
    if not codec.describes(data.slice(0, data_start)):
        cut = cut or _mended(name)
        message = header_of(codec, facts, first)
        if not good or len(message) == data_start:  # else the batches would lie elsewhere
            batches = data.slice(data_start, data_end - data_start)
            disk.write_whole(name.arrow, [message, batches])
            disk.sync_directory(name.directory)
    return ActiveSegment(disk, name, codec, first, kept), cut


def lost_markers(segment: Segment, following: Segment) -> Cut | None:
    """What an older segment without a hole lacks at its end: the next one's first index tells."""
    entries = following.first.entry - segment.end.entry
    if entries <= 0:
        return None
    reason = "the markers at its end are damaged, its batches are not"
    return Cut(str(segment.name.entries), 0, entries, entries * ENTRY_SIZE, False, reason)


def _mended(name: SegmentName) -> Cut:
    reason = "its schema message was damaged, its batches are not"
    return Cut(str(name.arrow), 0, 0, 0, False, reason)


def _cut(
    disk: Disk, name: SegmentName, whole: int, table: Table, good: int, data: pa.Buffer, end: int
) -> Cut:
    kept, lost = table[:good], table[good:]
    intact = np.flatnonzero(intact_rows(lost))
    # What lies between the prefix and the last intact entry was there once, damaged or not.
    entries = int(intact[-1]) + 1 if len(intact) else 0
    records = next_offset(lost[:entries], 0) - next_offset(kept, name.base_offset) if entries else 0
    replaced: list[tuple[Path, pa.Buffer | bytes]] = []
    if whole != good * ENTRY_SIZE:
        replaced.append((name.entries, kept.tobytes()))
    if data.size != end:
        replaced.append((name.arrow, data.slice(0, end)))
    if entries:
        _keep_aside(disk, name.directory, [path for path, _ in replaced])
    for path, content in replaced:
        disk.write_whole(path, [content])
    disk.sync_directory(name.directory)
    return Cut(
        segment=str(name.arrow),
        records_lost=max(0, records),
        entries_lost=entries,
        bytes_lost=max(0, data.size - end) + whole - good * ENTRY_SIZE,
        kept_aside=entries > 0,
        reason="cut behind the valid prefix",
    )


def _keep_aside(disk: Disk, directory: Path, paths: list[Path]) -> None:
    """Gives the files a second name in the folder ``cut``, beside those of earlier cuts."""
    folder = directory / "cut"
    taken = set(disk.names(folder)) if folder.name in disk.names(directory) else set()
    endings = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
    ending = next(end for end in endings if not taken & {path.name + end for path in paths})
    for path in paths:
        disk.keep_aside(path, folder / (path.name + ending))


def _read_table(disk: Disk, name: SegmentName) -> tuple[int, Table]:
    raw = disk.map(name.entries)
    rows = raw.size // ENTRY_SIZE
    return raw.size, np.frombuffer(raw, ENTRY, count=rows)


def _good_entries(table: Table, least_entry: int | None, base_offset: int) -> int:
    """How many leading entries are good; ``least_entry``: the first one's index is no lower."""
    intact = intact_entries(table)
    if not intact or (least_entry is not None and int(table[0]["entry_index"]) < least_entry):
        return 0
    position = int(table[0]["position"])
    return valid_prefix(table[:intact], None, base_offset, position)


def _first_index(disk: Disk, name: SegmentName, table: Table, least_entry: int | None) -> int:
    """Which entry a segment starts with: its first entry says so, or its header.

    ``least_entry`` is the index behind what is left of the segment before it.
    """
    if len(table):
        return int(table[0]["entry_index"])
    told = None
    if name.arrow.name in disk.names(name.directory):
        data = disk.map(name.arrow)
        length = header_length(data)
        facts = facts_of(data.slice(0, length)) if length else None
        told = (facts or {}).get("isolog.base_entry")
    if told is None:
        return _known_start(least_entry, name)
    return int(told) if least_entry is None else max(int(told), least_entry)


def _known_start(first_entry: int | None, name: SegmentName) -> int:
    if first_entry is not None:
        return first_entry
    if name.base_offset == 0:
        return 0
    raise DamagedSegment(
        f"{name.arrow}: neither the file nor {name.entries} tells which entry it starts with",
        path=str(name.arrow),
    )


def _missing(name: SegmentName) -> DamagedSegment:
    return DamagedSegment(
        f"{name.entries} is missing; without it the epochs and producers of {name.arrow.name}"
        " are not known, and isolog does not guess them",
        path=str(name.entries),
        hint="Restore the file from a backup or a replica, or delete the partition's directory.",
    )
