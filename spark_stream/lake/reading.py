"""Rows of a table by their offsets: the part of a topic that its log may have removed.

**Continuity** is judged by the offsets in the table's transactions, never by a count of rows: a
range of offsets without rows has aborted records only. A table is complete from the first offset of
its first commit to its present offset (:class:`Coverage`).

**Order.** The rows of isolog's files are in the order of their offsets. Another program may have
compacted files of several partitions into one, in any order. So row groups whose offsets overlap
are read together and sorted. One file is open at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from spark_stream.lake.cuts import cuts_in
from spark_stream.lake.data_files import DataFile, TableFiles
from spark_stream.lake.delta.schema import OFFSET, PARTITION, TIMESTAMP
from spark_stream.lake.delta.statistics import ANY, Interval
from spark_stream.lake.delta.table import Table
from spark_stream.lake.steps import Cut

T = TypeVar("T")
_ROWS_AT_ONCE: Final = 1 << 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Coverage(Struct, frozen=True):
    """The offsets of a partition for which a table is complete: ``[first, end)``."""

    first: int
    end: int


def coverage(table: Table, topic_id: str, partition: int) -> Coverage | None:
    """Return the coverage of a partition, or None if the table has no commit of it."""
    end = table.offset(topic_id, partition)
    first = table.first_offset(topic_id, partition)
    return None if end is None or first is None or first > end else Coverage(first, end)


def read_rows(
    files: TableFiles,
    table: Table,
    partition: int,
    start: int,
    end: int,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``[start, end)`` of a partition in the order of their offsets.

    The batches have the offset, and those of ``columns`` that a file has.

    Raises:
        LakeUnavailable: As :class:`DataFile`. Rows up to the last yielded offset are complete.
    """
    names = list(dict.fromkeys([*columns, PARTITION, OFFSET]))
    wanted = (start, end - 1)
    found = []
    for file in table.files.values():
        partitions, offsets = file.statistics.partitions, file.statistics.offsets
        if _overlap(partitions, (partition, partition)) and _overlap(offsets, wanted):
            found.append((offsets, file))
    for group in _chains(found, lambda each: each[0]):
        units: list[_Unit] = []
        last: DataFile | None = None
        for _, file in group:
            if last is not None:
                last.close()
            last = DataFile(files, table.at, file)
            units += _units(last, partition, wanted)
        for chain in _chains(units, lambda each: each.offsets):
            rows = []
            for each in chain:
                if last is not None and last is not each.file:
                    last.close()
                last = each.file
                rows.append(last.read_group(each.group, names))
            whole = rows[0] if len(rows) == 1 else pa.concat_tables(rows, promote_options="default")
            yield from _in_order(whole, partition, start, end)


def first_at(
    files: TableFiles, table: Table, partition: int, time_us: int, start: int, end: int
) -> int | None:
    """Return the first offset in ``[start, end)`` whose record is not older than the time."""
    moment = pa.scalar(time_us, pa.timestamp("us", "UTC"))
    for batch in read_rows(files, _not_before(table, time_us), partition, start, end, [TIMESTAMP]):
        later = batch.filter(pc.greater_equal(batch.column(TIMESTAMP), moment))
        if later.num_rows:
            offset: int = later.column(OFFSET)[0].as_py()
            return offset
    return None


def stored_bytes(table: Table, partition: int, start: int, end: int) -> int:
    """Return the approximate size of the rows of a range, in proportion to offsets of files."""
    total = 0
    for file in table.files.values():
        first, last = file.statistics.offsets
        if file.statistics.partitions == (partition, partition) and first <= last:
            shared = min(end, last + 1) - max(start, first)
            total += max(0, file.size * shared // (last + 1 - first))
    return total


def read_cuts(files: TableFiles, cuts: Table) -> Iterator[Cut]:
    """Yield the recorded cuts of a lake, the last one first. Read a file when it is needed.

    Raises:
        LakeUnavailable: As :class:`DataFile`.
    """
    for chain in reversed(list(_chains(cuts.files.values(), lambda each: each.statistics.cuts))):
        yield from cuts_in(DataFile(files, cuts.at, each).read() for each in chain)


# -- files ----------------------------------------------------------------------------------------


def _not_before(table: Table, time_us: int) -> Table:
    """Return the table without files whose records are all older than the time."""
    # Statistics may be truncated to milliseconds.
    moment = _EPOCH + timedelta(microseconds=time_us - 1000)
    kept = {
        path: file
        for path, file in table.files.items()
        if (at := file.statistics.newest) is None or at >= moment
    }
    return Table(table.at, table.version, files=kept)


class _Unit(Struct, frozen=True):
    """A row group of a file. ``offsets``: by its statistics."""

    file: DataFile
    group: int
    offsets: Interval


def _units(file: DataFile, partition: int, wanted: Interval) -> list[_Unit]:
    """Return the row groups of a file that may have wanted rows."""
    found = []
    for number, group in enumerate(file.row_groups()):
        partitions, offsets = _of_group(group, PARTITION), _of_group(group, OFFSET)
        if _overlap(partitions, (partition, partition)) and _overlap(offsets, wanted):
            found.append(_Unit(file, number, offsets))
    return found


def _of_group(group: Any, column: str) -> Interval:
    for place in range(group.num_columns):
        each = group.column(place)
        if each.path_in_schema == column:
            known = each.statistics
            return ANY if known is None or not known.has_min_max else (known.min, known.max)
    return ANY


def _overlap(one: Interval, other: Interval) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _chains(items: Iterable[T], interval: Callable[[T], Interval]) -> Iterator[list[T]]:
    """Yield groups of items in order, so that items of two groups do not overlap."""
    chain: list[T] = []
    last = 0
    for item in sorted(items, key=interval):
        first, end = interval(item)
        if chain and first > last:
            yield chain
            chain = []
        last = end if not chain else max(last, end)
        chain.append(item)
    if chain:
        yield chain


def _in_order(whole: pa.Table, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of row groups, sorted by their offsets."""
    offsets, partitions = whole.column(OFFSET), whole.column(PARTITION)
    inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    inside = pc.and_(inside, pc.equal(partitions, partition))
    if not pc.all(inside).as_py():
        whole = whole.filter(inside)
    offsets = whole.column(OFFSET).combine_chunks()
    if len(offsets) > 1 and not pc.all(pc.less(offsets[:-1], offsets[1:])).as_py():
        whole = whole.sort_by(OFFSET)
    whole = whole.drop_columns([PARTITION])
    yield from (each for each in whole.to_batches(_ROWS_AT_ONCE) if each.num_rows)
