"""The logs below a directory, and their segments as the files have them, damage included.

A segment's schema message has the schema of its batches, and its entries have the version of that
schema. So batches are decoded without the metadata store, which may be on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import facts_of, header_length
from spark_stream.consistency.entries import Kind, Table, aborted_rows, open_transactions
from spark_stream.consistency.ids import NO_TRANSACTION, Offset
from spark_stream.errors import DamagedSegment, IsologError, NotALogDirectory, StorageFailure
from spark_stream.storage.disk.directory import log_note
from spark_stream.storage.format.codec import intact_rows
from spark_stream.storage.format.log_format import UNLIMITED, LogFormat
from spark_stream.storage.format.stored import Chunk
from spark_stream.storage.log.damage import CUT_FOLDER
from spark_stream.storage.log.reading import Budget, ReadPlan, read_segments
from spark_stream.storage.log.segment_files import (
    FoundSegment,
    SegmentFiles,
    is_segment_file,
    whole_rows,
)
from spark_stream.storage.offline.snapshot import SnapshotDisk
from spark_stream.storage.segment.segment import Segment, SegmentName
from spark_stream.storage.settings import Compression, LogSettings

NO_STATE: Final = ""
STATES: Final = (NO_STATE, "committed", "open", "aborted")
"""The states of an entry: in no transaction, or the state of its transaction in this log."""

_PLAIN, _COMMITTED, _OPEN, _ABORTED = range(4)
_DESCRIPTION: Final = "isolog.json"
_NOTE: Final = ".begun"
_LOOKS_MAX: Final = 10
_DEPTH_MAX: Final = 5  # a data directory, "topics", a topic's name, its id, a partition
_SEGMENT_FACTS: Final = ("isolog.base_offset", "isolog.base_entry")


def find_logs(directory: Path) -> list[Path]:
    """Return the folders below the directory that are logs, or were one, sorted.

    Folders of cut files (``cut/``) are left out, unless ``directory`` is such a folder.

    Raises:
        NotALogDirectory: There is no log, and the directory is not a broker's.
    """
    found: set[Path] = set()
    for place, folders, names in os.walk(directory):
        here = Path(place)
        folders[:] = [each for each in folders if each != CUT_FOLDER]
        if len(here.relative_to(directory).parts) >= _DEPTH_MAX:
            folders.clear()
        if any(is_segment_file(name) for name in names) or log_note(here).exists():
            found.add(here)
        found.update(here / name.removesuffix(_NOTE) for name in names if name.endswith(_NOTE))
    if not found and not (directory / _DESCRIPTION).exists():
        raise NotALogDirectory(
            f"no partition's log is in {directory}",
            path=str(directory),
            hint="Give a broker's directory, or the folder of a topic or a partition in it.",
        )
    return sorted(found, key=lambda path: (path.parent, len(path.name), path.name))


def broker_directory(directory: Path) -> Path | None:
    """Return the broker's directory at or above this one. None for a copy elsewhere."""
    above = (directory.absolute(), *directory.absolute().parents)
    return next((each for each in above if (each / _DESCRIPTION).exists()), None)


class SegmentView(Struct, frozen=True):
    """The content of a segment's files. ``found.table`` has all complete rows, valid or not.

    ``states``: for each valid row an index into :data:`STATES`. ``schema``: None if no intact
    schema message is left in any segment of the same schema version.
    """

    found: FoundSegment
    segment: Segment
    states: npt.NDArray[np.uint8]
    schema: pa.Schema | None
    header_intact: bool
    closed: bool

    @property
    def intact(self) -> npt.NDArray[np.bool_]:
        """A mask of the rows with a right checksum, shape (rows,)."""
        return intact_rows(self.found.table)

    def states_at(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the state of the entry of each of these offsets."""
        bases = self.found.kept["base_offset"]
        return self.states[np.searchsorted(bases, offsets, side="right") - 1]

    def records(self, start: int, end: int) -> Iterator[Chunk | DamagedSegment]:
        """Yield this segment's records of ``[start, end)``, and an error for damaged ones."""
        at = max(Offset(start), self.segment.first.offset)
        stop = min(Offset(end), self.segment.end.offset)
        wanted = ReadPlan(self.segment.codec.schema)
        while at < stop:
            try:
                for chunk in read_segments([self.segment], at, stop, wanted, _unlimited()):
                    at = chunk.next_offset
                    yield chunk
            except DamagedSegment as error:
                yield error
                at = Offset(int(error.details["next"]))


def _unlimited() -> Budget:
    return Budget(UNLIMITED, UNLIMITED)


def look_at(path: Path, *, in_use: bool) -> LogFiles:
    """Take a snapshot of a log's files. ``in_use``: its broker may be running.

    Raises:
        StorageFailure: The files cannot be read.
    """
    for _ in range(_LOOKS_MAX if in_use else 0):
        with suppress(StorageFailure):  # a file was removed after the directory was listed
            return LogFiles(path, SnapshotDisk(in_use=True))
    return LogFiles(path, SnapshotDisk(in_use=in_use))


class LogFiles:
    """The files of one log, for reading only."""

    def __init__(self, path: Path, disk: SnapshotDisk) -> None:
        self.path = path
        self.disk = disk
        self._names = disk.names(path)
        self._unformatted = SegmentFiles(disk, path, LogFormat(pa.schema([])), self._names)
        headers = [self._header(name) for name in self._unformatted.segments()]
        self._sound = {name for name, header in headers if header is not None}
        facts: dict[str, str] = {}
        schemas: dict[int, pa.Schema] = {}
        loose = []  # of segments without a batch
        versions = {0}
        for name, header in headers:
            version = self._version(name)
            versions |= set() if version is None else {version}
            if header is None:
                continue
            schema, told = header
            facts = facts or told
            if version is None:
                loose.append(schema)
            else:
                schemas.setdefault(version, schema)
        if not schemas and loose:
            schemas[max(versions)] = loose[-1]
        for schema in loose:
            if not any(schema.equals(each) for each in schemas.values()):
                schemas[max(versions | set(schemas)) + 1] = schema
        self._schemas = schemas
        self.format = _format(schemas, max(versions | set(schemas)), facts)
        self.files = SegmentFiles(disk, path, self.format, self._names)
        self.topic = facts.get("isolog.topic") or _topic_of(path)
        number = facts.get("isolog.partition", path.name)
        self.partition = int(number) if number.isdecimal() else None

    def _header(
        self, name: SegmentName
    ) -> tuple[SegmentName, tuple[pa.Schema, dict[str, str]] | None]:
        """Return the schema and the facts of a segment's schema message, or None if damaged."""
        if name.arrow.name not in self._names:
            return name, None
        data = self.disk.map(name.arrow)
        length = header_length(data)
        if length is None:
            return name, None
        message = data.slice(0, length)
        schema = pa.ipc.read_schema(message)
        own = {
            key: value
            for key, value in (schema.metadata or {}).items()
            if not key.startswith(b"isolog.")
        }
        return name, (schema.with_metadata(own or None), facts_of(message) or {})

    def _version(self, name: SegmentName) -> int | None:
        """Return the schema version of a segment's batches, or None without a batch."""
        table = whole_rows(self._unformatted.entries(name))
        batches = np.flatnonzero(table["kind"] == Kind.DATA)
        for row in batches[:1]:
            if intact_rows(table[row : row + 1]).all():
                return int(table[row]["schema"])
        return None

    def has_sound_header(self, name: SegmentName) -> bool:
        """Return whether a segment's schema message is intact."""
        return name in self._sound

    @cached_property
    def segments(self) -> tuple[SegmentView, ...]:
        """The readable segments, oldest first. ``missing`` has the errors of the others."""
        return self._looked_at[0]

    @cached_property
    def missing(self) -> tuple[IsologError, ...]:
        """The errors of unreadable segments."""
        return self._looked_at[1]

    @cached_property
    def _looked_at(self) -> tuple[tuple[SegmentView, ...], tuple[IsologError, ...]]:
        found: list[FoundSegment] = []
        errors: list[IsologError] = []
        names = self.files.segments()
        for name in names:
            try:
                found.append(self.files.found(name, None))
            except DamagedSegment as error:
                errors.append(error)
        tables = [each.kept for each in found]
        states = _states(tables)
        views = tuple(
            self._view(each, known, closed=each.name != names[-1])
            for each, known in zip(found, states, strict=True)
        )
        return views, tuple(errors)

    def _view(
        self, found: FoundSegment, states: npt.NDArray[np.uint8], *, closed: bool
    ) -> SegmentView:
        batches = found.kept[found.kept["kind"] == Kind.DATA]
        codec, schema = self.format.codec, None
        if len(batches):
            version = int(batches[0]["schema"])
            codec, schema = self.format.codec_of(version), self._schemas.get(version)
        segment = Segment(self.disk, found.name, codec, found.first, found.kept)
        sound = self.has_sound_header(found.name)
        return SegmentView(found, segment, states, schema, sound, closed)


def _format(schemas: dict[int, pa.Schema], last: int, facts: dict[str, str]) -> LogFormat:
    """Return a format that decodes all batches, compressed or not."""
    stand_in = schemas.get(last, pa.schema([]))
    known = [schemas.get(version, stand_in) for version in range(last + 1)]
    return LogFormat(
        known[-1],
        LogSettings(compression=Compression.ZSTD),
        facts=tuple((name, text) for name, text in facts.items() if name not in _SEGMENT_FACTS),
        earlier=tuple(known[:-1]),
    )


def _topic_of(path: Path) -> str:
    """Return the topic's name from the folders above a partition's, or an empty text."""
    parts: Sequence[str] = path.absolute().parts
    return parts[-3] if len(parts) > 3 and parts[-4] == "topics" else ""


def _states(tables: Sequence[Table]) -> list[npt.NDArray[np.uint8]]:
    undecided = open_transactions(tables)
    found = []
    for table, aborted in zip(tables, aborted_rows(tables), strict=True):
        states = np.where(table["transaction"] != NO_TRANSACTION, _COMMITTED, _PLAIN)
        for transaction, producer in undecided:
            mine = (table["transaction"] == transaction) & (table["producer_id"] == producer)
            states[mine] = _OPEN
        if aborted is not None:
            states[aborted] = _ABORTED
        states[table["kind"] == Kind.ABORT] = _ABORTED
        found.append(states.astype(np.uint8))
    return found


def array_of(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Convert numbers to an Arrow array of the same width, without an import of pandas."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, data])
