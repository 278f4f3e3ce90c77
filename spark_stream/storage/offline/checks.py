"""The damage of a log, and the effect of an open, without changes to the files.

The log is opened on a :class:`SnapshotDisk`, so its recovery reports the entries that it would cut.
Then all of its entries and batches are read from the disk, as the broker's scrub does.

Beside a running broker, a fault is reported only if a second check finds it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from spark_stream.consistency.entries import ENTRY_SIZE
from spark_stream.errors import DamagedSegment, StorageFailure
from spark_stream.storage.disk.fsyncs import Fsyncs, FsyncState
from spark_stream.storage.format.codec import END_OF_STREAM, intact_entries
from spark_stream.storage.log.damage import LostTail
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.segment_files import FoundSegment
from spark_stream.storage.offline.files import LogFiles, look_at
from spark_stream.storage.offline.snapshot import SnapshotDisk
from spark_stream.storage.segment.checks import Suspect, pieces
from spark_stream.storage.segment.segment import Segment

_LOOKS_MAX: Final = 5

_FROM_REPLICA: Final = (
    "If the partition has another replica, start the broker: it gets the entry again from there."
    " If it has none, restore the file from a backup. The other records stay readable."
)
_BEFORE_START: Final = (
    "If the partition has no other replica, restore the file from a backup before a broker opens"
    " the log. If it has one, start the broker: it gets the missing records from there."
)
_NOTHING_TO_DO: Final = "Nothing: it was never acknowledged, and the next open cuts it off."


class Finding(Struct, frozen=True):
    """A fault in a log's files.

    ``position``: in ``file``, bytes. ``entry`` and ``offset``: of the first affected record. Each
    is None if it does not apply. ``damage``: False if no acknowledged record is lost.
    """

    file: str
    problem: str
    remedy: str
    damage: bool = True
    position: int | None = None
    entry: int | None = None
    offset: int | None = None


class CheckedLog(Struct, frozen=True):
    """The result of a check. ``start`` and ``end`` are offsets. ``changes``: those of an open.

    ``segments``, ``entries``, ``records`` and ``bytes`` are the sizes after an open.
    """

    path: str
    topic: str
    partition: int | None
    segments: int = 0
    entries: int = 0
    records: int = 0
    bytes: int = 0
    start: int = 0
    end: int = 0
    findings: tuple[Finding, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def damaged(self) -> bool:
        """Whether a record is lost that may have been acknowledged."""
        return any(each.damage for each in self.findings)


def check_log(path: Path, *, in_use: bool = False) -> CheckedLog:
    """Check one log. ``in_use``: its broker may be running.

    Raises:
        StorageFailure: the files cannot be read.
    """
    found = _check(path, in_use)
    for _ in range(_LOOKS_MAX if in_use else 0):
        if not found.findings:
            break
        before, found = found, _check(path, in_use)
        if found.findings == before.findings:
            break
    return found


def damaged_entries(segment: Segment, files: LogFiles) -> list[Suspect]:
    """Return the entries of a segment that fail a check of their bytes.

    The bytes come from the disk itself, if the file system permits it and the files still exist.
    """
    return [each for piece in pieces(files.disk, [segment]) for each in piece.suspects]


def _check(path: Path, in_use: bool) -> CheckedLog:
    files = look_at(path, in_use=in_use)
    disk = files.disk.unchanged()
    try:
        log = PartitionLog.open(path, files.format, disk)
    except (DamagedSegment, StorageFailure) as error:
        file = str(error.details.get("path", path))
        remedy = error.hint if isinstance(error, DamagedSegment) else "Look again."
        refused = Finding(file, f"a broker cannot open the log: {error.message}", remedy)
        return CheckedLog(str(path), files.topic, files.partition, findings=(refused,))
    findings = [
        *_cuts(log, files),
        *_headers(log, files),
        *_damage(log, files),
        *([] if in_use else _forces(path)),
    ]
    if not findings and not log.intact:
        findings.append(
            Finding(
                str(path),
                "the folder of the partition is missing, but it has had entries",
                "Restore the folder from a backup, or start the broker: it takes the log from"
                " another replica if there is one.",
            )
        )
    changes = () if in_use else tuple(str(each) for each in disk.changes() if _is_data(each.path))
    return CheckedLog(
        str(path),
        files.topic,
        files.partition,
        segments=sum(each.name.entries.exists() for each in log.segments),
        entries=log.end.entry - log.start.entry,
        records=log.end.offset - log.start.offset,
        bytes=log.size,
        start=int(log.start.offset),
        end=int(log.end.offset),
        findings=tuple(findings),
        changes=changes,
    )


def _is_data(path: Path) -> bool:
    """Return whether a file has records. Every open may write the other files."""
    return path.suffix != "" and not path.name.endswith(".extremes")


def _cuts(log: PartitionLog, files: LogFiles) -> Iterator[Finding]:
    for cut in log.cuts:
        if not cut.grave and not cut.bytes_lost:
            continue  # a schema message that is rewritten
        file, position, problem = _end_problem(log.segments[-1], files, cut)
        lost = (
            f"opening the log ends it at offset {cut.end} and takes {cut.entries_lost} entries with"
            f" {cut.records_lost} records out of it"
        )
        if cut.entries_doubtful:
            lost += f", and {cut.entries_doubtful} entries that may have been acknowledged"
        yield Finding(
            file,
            f"{problem}; {lost}" if cut.grave else f"{problem}: a write that never ended",
            _BEFORE_START if cut.grave else _NOTHING_TO_DO,
            cut.grave,
            position,
            int(log.end.entry),
            int(log.end.offset),
        )


def _end_problem(last: Segment, files: LogFiles, cut: LostTail) -> tuple[str, int, str]:
    """Return the file and the position of a log's end, and the reason for it."""
    name, kept = last.name, len(last.table)
    if name not in files.files.segments():
        return str(files.path), 0, cut.reason
    found = files.files.found(name, last.first)
    entry = last.first.entry + kept
    if kept < len(found.table):
        return _row_problem(found, kept, entry)
    if found.raw.size % ENTRY_SIZE:
        return str(name.entries), kept * ENTRY_SIZE, "the last entry is incomplete"
    end = last.data_end
    beyond = found.data_size - end
    if end and beyond and beyond != len(END_OF_STREAM):
        return str(name.arrow), end, f"{beyond} bytes at the end belong to no entry"
    following = [each for each in files.files.segments() if each.base_offset > name.base_offset]
    if following:
        return str(following[0].entries), 0, "the segment does not start where the one before ends"
    return str(name.entries), kept * ENTRY_SIZE, "entries at the end are missing"


def _row_problem(found: FoundSegment, kept: int, entry: int) -> tuple[str, int, str]:
    name, row = found.name, found.table[kept]
    at = kept * ENTRY_SIZE
    if not intact_entries(found.table[kept : kept + 1]):
        return str(name.entries), at, f"entry {entry} fails its checksum"
    position, length = int(row["position"]), int(row["length"])
    if position + length > found.data_size:
        return str(name.arrow), found.data_size, f"the file ends before the batch of entry {entry}"
    if kept < found.good:
        return str(name.arrow), position, f"the batch of entry {entry} fails its checksum"
    return str(name.entries), at, f"entry {entry} does not follow the one before it"


def _headers(log: PartitionLog, files: LogFiles) -> Iterator[Finding]:
    """Yield the damaged schema messages, which no checksum of an entry covers."""
    for segment in log.segments:
        name = segment.name
        if len(segment.table) and not files.has_sound_header(name):
            yield Finding(
                str(name.arrow),
                "its schema message is damaged; its batches are not affected",
                "Nothing for isolog, which has the schema elsewhere. For other programs that read"
                " the file, restore it from a backup.",
                position=0,
                offset=int(segment.first.offset),
            )


def _damage(log: PartitionLog, files: LogFiles) -> Iterator[Finding]:
    for segment in log.segments:
        for suspect in damaged_entries(segment, files):
            row = int(suspect.entry - segment.first.entry)
            rows = segment.table[row : row + 1]
            if intact_entries(rows):
                file, position = segment.name.arrow, int(rows[0]["position"])
                what = "the batch of entry"
            else:
                file, position, what = segment.name.entries, row * ENTRY_SIZE, "entry"
            try:
                offset: int | None = int(segment.boundary_of(suspect.entry).offset)
            except DamagedSegment:
                offset = None
            yield Finding(
                str(file),
                f"{what} {int(suspect.entry)} fails its checksum",
                _FROM_REPLICA,
                position=position,
                entry=int(suspect.entry),
                offset=offset,
            )


def _forces(path: Path) -> Iterator[Finding]:
    disk = SnapshotDisk()
    forcing = Fsyncs(disk, path, disk.names(path))
    if forcing.state is FsyncState.DONE:
        return
    ended = "failed" if forcing.state is FsyncState.FAILED else "did not end"
    yield Finding(
        str(path / "flushed"),
        f"an fsync of the log {ended}: the disk may lack the records after offset"
        f" {forcing.upto.offset}",
        "Check the disk. The next open writes that part of the log again.",
        forcing.state is FsyncState.FAILED,
        entry=int(forcing.upto.entry),
        offset=int(forcing.upto.offset),
    )
