"""The content of a segment's files, before the recovery changes them.

:func:`finish_replacements` removes leftover files before that.

A crash cannot remove a file's name after the first batch, because names are forced before it is
written. So if one of a segment's two files is missing, and the other has a batch or an entry,
another program removed it. Then the open is refused, and no file is moved.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import facts_of, header_length
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Table, valid_prefix
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import DamagedSegment
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.format.codec import intact_entries, intact_rows
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.truncation import ENDING
from spark_stream.storage.segment.active_segment import header_of
from spark_stream.storage.segment.segment import EXTREMES, SegmentName

NOTHING = pa.py_buffer(b"")


class FoundSegment(Struct, frozen=True):
    """A segment as its entries describe it: the first ``good`` rows of ``table`` are valid.

    ``raw`` is the entries file, which may end with a part of a row. ``data_size``: bytes of the
    ``.arrow`` file.
    """

    name: SegmentName
    first: Boundary
    raw: pa.Buffer
    table: Table
    good: int
    data_size: int

    @property
    def kept(self) -> Table:
        return self.table[: self.good]

    @property
    def end(self) -> Boundary:
        return end_of(self.kept, self.first)

    @property
    def data_end(self) -> int:
        """The position in the ``.arrow`` file after the last valid batch, or 0 without one."""
        kept = self.kept
        return int(kept[-1]["position"] + kept[-1]["length"]) if self.good else 0


class SegmentFiles:
    """The files of a log's segments. ``names``: all names in its directory."""

    def __init__(
        self, disk: Disk, directory: Path, log_format: LogFormat, names: Collection[str]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._format = log_format
        self._names = set(names)

    def segments(self) -> list[SegmentName]:
        """Return all segments that have a file, oldest first."""
        bases = {base_of(name) for name in self._names if is_segment_file(name)}
        return [SegmentName(self._directory, base) for base in sorted(bases)]

    def paths(self, name: SegmentName) -> list[Path]:
        """Return the paths of a segment's existing files."""
        return [path for path in (name.arrow, name.entries) if path.name in self._names]

    def data(self, name: SegmentName) -> pa.Buffer:
        """Return the ``.arrow`` file's bytes, or no bytes if it is missing."""
        return self._disk.map(name.arrow) if name.arrow.name in self._names else NOTHING

    def entries(self, name: SegmentName) -> pa.Buffer:
        """Return the entries file's bytes without a hole at its end. Empty if it is missing."""
        if name.entries.name not in self._names:
            return NOTHING
        return self._disk.map(name.entries).slice(0, self._disk.stored_size(name.entries))

    def found(self, name: SegmentName, expected: Boundary | None) -> FoundSegment:
        """Read a segment from its entries. It must start at ``expected``, or anywhere if None.

        Raises:
            DamagedSegment: one of its files is missing, or its start is unknown.
        """
        raw = self.entries(name)
        table = whole_rows(raw)
        data_size = self._data_size(name)
        if name.entries.name not in self._names and data_size > self._unfinished_size(name):
            raise _missing(name)
        if name.arrow.name not in self._names and len(table):
            raise DamagedSegment(
                f"{name.arrow} is missing, and {name.entries.name} has {len(table)} entries",
                path=str(name.arrow),
                hint=_RESTORE,
            )
        good = 0
        intact = intact_entries(table)
        if intact:
            entry = None if expected is None else int(expected.entry)
            position = int(table[0]["position"])
            good = valid_prefix(table[:intact], entry, name.base_offset, position)
            ends = table["position"][:good] + table["length"][:good]
            # Markers before the first batch may have outdated positions (``Truncation.in_schema``).
            beyond = (ends > data_size) & (np.cumsum(table["length"][:good]) > 0)
            if beyond.any():
                good = int(beyond.argmax())
        entry = self._first_entry(name, table[:good], expected)
        first = Boundary(EntryIndex(entry), Offset(name.base_offset))
        return FoundSegment(name, first, raw, table, good, data_size)

    def recorded_entry(self, name: SegmentName) -> int | None:
        """Return the index of a segment's first entry, from its entries or its schema message."""
        first = whole_rows(self.entries(name))[:1]
        if intact_entries(first):
            return int(first[0]["entry_index"])
        data = self.data(name)
        length = header_length(data)
        facts = (facts_of(data.slice(0, length)) if length else None) or {}
        recorded = facts.get("isolog.base_entry")
        return None if recorded is None else int(recorded)

    def follows(self, found: FoundSegment, following: SegmentName) -> bool:
        """Return whether the next segment starts where this one ends."""
        if following.base_offset != found.end.offset:
            return False
        return self.recorded_entry(following) in (None, found.end.entry)

    def starts_within(self, found: FoundSegment, following: SegmentName) -> bool:
        """Return whether the next segment starts before this one ends."""
        recorded = self.recorded_entry(following)
        earlier = recorded is not None and recorded < found.end.entry
        before = following.base_offset - found.end.offset
        return before < 0 or (before == 0 and earlier)

    def is_empty(self, name: SegmentName) -> bool:
        """Return whether a segment never had an entry."""
        no_entry = self.entries(name).size == 0
        return no_entry and self._data_size(name) <= self._unfinished_size(name)

    def known_end(self, name: SegmentName) -> Boundary:
        """Return a position that the log's end had certainly reached, given this segment."""
        least = Boundary(EntryIndex(self.recorded_entry(name) or 0), Offset(name.base_offset))
        return last_intact_end(whole_rows(self.entries(name)), least)

    def _data_size(self, name: SegmentName) -> int:
        return self._disk.size(name.arrow) if name.arrow.name in self._names else 0

    def _unfinished_size(self, name: SegmentName) -> int:
        """Return the size up to which an ``.arrow`` file has no batch."""
        found = header_length(self.data(name))
        if found is not None:
            return found
        widest = Boundary(EntryIndex(1 << 62), Offset(name.base_offset))
        facts = dict(self._format.facts)
        return max(len(header_of(codec, facts, widest)) for codec in self._format.codecs)

    def _first_entry(self, name: SegmentName, kept: Table, expected: Boundary | None) -> int:
        if len(kept):
            return int(kept[0]["entry_index"])
        if expected is not None:
            return int(expected.entry)
        recorded = self.recorded_entry(name)
        if recorded is None and name.base_offset != 0:
            raise DamagedSegment(
                f"{name.arrow}: neither the file nor {name.entries} has the index of its first"
                " entry",
                path=str(name.arrow),
            )
        return recorded or 0


def is_segment_file(name: str) -> bool:
    """Return whether a segment has a file of this name."""
    base, dot, kind = name.partition(".")
    numbered = base.isascii() and base.isdigit() and len(base) == 20
    return bool(dot) and numbered and kind in ("arrow", "entries")


def base_of(segment_file: str) -> int:
    """Return the base offset in a segment file's name."""
    return int(segment_file.partition(".")[0])


def whole_rows(raw: pa.Buffer) -> Table:
    """Return the complete rows of an entries file, without a partial one at its end."""
    return np.frombuffer(raw, ENTRY, count=raw.size // ENTRY_SIZE)


def end_of(table: Table, first: Boundary) -> Boundary:
    """Return the position after the last entry, or ``first`` if there is none."""
    if not len(table):
        return first
    last = table[-1]
    return Boundary(
        EntryIndex(int(last["entry_index"]) + 1),
        Offset(int(last["base_offset"]) + int(last["count"])),
    )


def last_intact_end(table: Table, least: Boundary) -> Boundary:
    """Return the position after the last entry whose checksum is right, wherever it is."""
    intact = np.flatnonzero(intact_rows(table))
    return end_of(table[: intact[-1] + 1], least) if len(intact) else least


def finish_replacements(disk: Disk, directory: Path, names: list[str]) -> list[str]:
    """Finish replacements and removals that a crash interrupted. Return the remaining names.

    ``names``: the names in the directory before.
    """
    tidy = True
    for name in names:
        whole = name.removesuffix(".new").removesuffix(ENDING)
        if whole != name and is_segment_file(whole):  # a crash prevented the replacement
            disk.remove(directory / name)
            tidy = False
        removed = name.removesuffix(".gone")
        if removed != name and is_segment_file(removed):  # an interrupted removal
            segment = SegmentName(directory, base_of(removed))
            segment.finish_removal(disk, lambda: disk.sync_directory(directory))
            tidy = False
        known = name.removesuffix(EXTREMES)  # of a removed segment
        if known != name and not {f"{known}.entries", f"{known}.arrow"} & set(names):
            disk.remove(directory / name)
            tidy = False
    return names if tidy else disk.names(directory)


_RESTORE = "Restore the file from a backup or a replica, or delete the partition's directory."


def _missing(name: SegmentName) -> DamagedSegment:
    return DamagedSegment(
        f"{name.entries} is missing; without it the epochs and producers of {name.arrow.name}"
        " are not known, and isolog does not guess them",
        path=str(name.entries),
        hint=_RESTORE,
    )
