"""Closed logs to damage and open again, and checks of the result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from isolog.errors import DamagedSegment
from spark_stream.consistency.ids import Offset
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.disk.fsyncs import MARK_NAME
from spark_stream.storage.log.log import PartitionLog
from tests.storage import logs
from tests.storage.logs import append_next, everything, format_of

BATCHES = (3, 1, 4, 1, 5)
"""Records in each batch of the sample's last segment."""


def batches_of(path: Path, base: int = 0, **settings) -> PartitionLog:
    """A closed log with one segment of those batches, and ``base`` records in an older segment."""
    log = PartitionLog.open(path, format_of(**settings))
    if base:
        append_next(log, rows=base)
        log.roll()
    for rows in BATCHES:
        append_next(log, rows)
    log.close()
    return log


def sample_log(folder: Path) -> PartitionLog:
    """A closed log of ten records in a closed segment and ``BATCHES`` in the last one."""
    return batches_of(folder, base=10)


def copied(sample: PartitionLog, folder: Path, *, forced: bool = True) -> PartitionLog:
    """The closed sample with its files in another folder.

    ``forced``: with the mark of fsyncs, as after a clean stop. Without it, as after a kill.
    """
    shutil.copytree(sample.directory, folder, dirs_exist_ok=True)
    if not forced:
        (folder / MARK_NAME).unlink()
    log = PartitionLog.open(folder, sample.format)
    assert log.cuts == ()
    return log


def open_again(log: PartitionLog) -> PartitionLog:
    return PartitionLog.open(log.directory, log.format)


def opened_or_refused(log: PartitionLog) -> tuple[PartitionLog | None, DamagedSegment | None]:
    try:
        return open_again(log), None
    except DamagedSegment as error:
        return None, error


def holds_exactly(log: PartitionLog, records: int, start: int = 0, disk: Disk = HOST_DISK) -> bool:
    """Whether the log has exactly these records, and durably accepts another one."""
    expected = [logs.records(*span) for span in _spans(log, start, records)]
    whole = everything(log)
    assert log.end.offset == records
    assert whole.equals(pa.Table.from_batches(expected, logs.SCHEMA))
    more = append_next(log, rows=2)
    # Without a close: the process was killed.
    again = PartitionLog.open(log.directory, log.format, disk)
    assert again.cuts == (), "what was cut once is not cut again"
    assert again.end.offset == records + 2
    assert everything(again).slice(records - start).equals(pa.Table.from_batches([more]))
    again.close()
    return True


def _spans(log: PartitionLog, start: int, end: int):
    for segment in log.segments:
        for row in segment.table:
            first, count = int(row["base_offset"]), int(row["count"])
            if start <= first < end:
                yield first, count


def starts(base: int) -> list[int]:
    """The offset at which each batch of the sample starts, and the end."""
    return [base + sum(BATCHES[:number]) for number in range(len(BATCHES) + 1)]


def three_segments(path: Path, first: int = 0) -> PartitionLog:
    """Segments of 10, 10 and 5 records, the first of them at offset ``first``."""
    log = PartitionLog.open(path, format_of(retention_bytes=2000))
    if first:
        append_next(log, rows=first, size=100)
        log.roll()
    for _ in range(2):
        for rows in (4, 1, 5):
            append_next(log, rows)
        log.roll()
    append_next(log, rows=5)
    if first:
        assert log.housekeep(logs.NOW, Offset(first)) == 1
    log.close()
    return log


def kept_aside(folder: Path) -> dict[str, bytes]:
    """The files in the folders of all cuts: path below the folder → bytes."""
    above = folder / "cut"
    return {
        str(path.relative_to(above)): path.read_bytes()
        for path in sorted(above.rglob("*"))
        if path.is_file()
    }
