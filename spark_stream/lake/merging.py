"""The merge of small files: adjacent files of a partition become one, in a separate version.

A merge changes no row and no offset (``dataChange`` is false), so readers of a table's changes skip
it. It is dropped if another version has removed one of its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from spark_stream.lake.delta.actions import Action, AddFile, commit_info
from spark_stream.lake.delta.statistics import ANY
from spark_stream.lake.delta.table import Table
from spark_stream.lake.steps import MergeFiles, NewMark, Now, Script
from spark_stream.lake.versions import PUTS_MAX, catch_up, put
from spark_stream.structs import Positional

FILES_LEAST: Final = 4


class FileRange(Positional):
    """The partition of a file's records, and their first and last offset."""

    partition: int
    first: int
    last: int


def range_of(file: AddFile) -> FileRange | None:
    """Return the range of a file by its statistics, or None if they are of several partitions."""
    known = file.statistics
    partition, last_partition = known.partitions
    if partition != last_partition or known.offsets == ANY:
        return None
    return FileRange(partition, *known.offsets)


def range_of_cuts(file: AddFile) -> FileRange | None:
    """Return the range of a file of the table of cuts, by their numbers."""
    numbers = file.statistics.cuts
    return None if numbers == ANY else FileRange(0, *numbers)


Ranging = Callable[[AddFile], FileRange | None]


def merge_table(
    table: Table,
    cluster: str,
    of: str,
    file_bytes: int,
    files_least: int = FILES_LEAST,
    ranging: Ranging = range_of,
) -> Script[int]:
    """Merge one group of small files. Return the number of files that became one, or 0.

    ``of``: the id of the table's topic. ``file_bytes``: the size of a file that is large enough.
    A smaller group than ``files_least`` waits.
    """
    yield from catch_up(table)
    table.check(cluster, of)
    group = small_files(table.files.values(), file_bytes, files_least, ranging)
    if not group or table.metadata is None:
        return 0
    merged = yield from MergeFiles(table.at, group, table.metadata.schema_string)
    mark = yield from NewMark()
    for attempt in range(PUTS_MAX):
        if merged.path in table.files:
            return len(group)
        if any(table.files.get(each.path) != each for each in group):
            return 0
        table.check(cluster, of)
        now_ms = yield from Now()
        actions = [commit_info("OPTIMIZE", now_ms, mark)]
        for each in group:
            removed = each.removed(now_ms, data_change=False)
            actions.append(Action(remove=removed))
        actions.append(Action(add=merged))
        yield from put(table, actions, may_retry=attempt + 1 < PUTS_MAX)
    return len(group) if merged.path in table.files else 0


def small_files(
    files: Iterable[AddFile],
    file_bytes: int,
    files_least: int = FILES_LEAST,
    ranging: Ranging = range_of,
) -> list[AddFile]:
    """Return the first group of adjacent small files of one partition, or none.

    A group has at least ``files_least`` files and at most ``file_bytes``. No file has more than
    half of its bytes: otherwise each new file would cause a copy of all earlier ones.
    """
    ranged = [(found, each) for each in files if (found := ranging(each)) is not None]
    ranged.sort(key=lambda pair: (pair[0].partition, pair[0].first))
    group: list[AddFile] = []
    partition, size = -1, 0
    for found, each in ranged:
        fits = found.partition == partition and size + each.size <= file_bytes
        if not fits or each.size > file_bytes // 2:
            if found_group := _worthwhile(group, files_least):
                return found_group
            group, size = [], 0
        partition = found.partition
        if each.size <= file_bytes // 2:
            group.append(each)
            size += each.size
    return _worthwhile(group, files_least)


def _worthwhile(group: list[AddFile], files_least: int) -> list[AddFile]:
    """Return the part of a group in which no file has more than half of the bytes, or none."""
    while len(group) >= files_least:
        sizes = [each.size for each in group]
        if max(sizes) * 2 <= sum(sizes):
            return group
        group = group[sizes.index(max(sizes)) + 1 :]
    return []
