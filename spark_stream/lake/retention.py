"""The retention of a table: old files are removed, and its first offsets advance with them.

It applies to topics with ``local.retention.*``: there ``retention.*`` is that of the table. As a
log loses whole segments, a table loses whole files. A file is removed only if all records of its
partitions that follow are in later files. The commit has the removals and the new first offsets, so
each version is complete between its first and its next offsets. The files themselves expire later
(``expiry.py``), and readers of older versions have them until then.

The table of cuts loses the cuts that are older than its versions (:func:`trim_cuts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

from spark_stream.lake.delta.actions import Action, AddFile, Txn, commit_info
from spark_stream.lake.delta.table import APPEND_ONLY, Table, first_application
from spark_stream.lake.expiry import LOG_RETENTION, LOG_RETENTION_MS, duration_ms
from spark_stream.lake.merging import range_of
from spark_stream.lake.steps import FindRanges, NewMark, Now, Script, TopicState
from spark_stream.lake.versions import PUTS_MAX, catch_up, put
from spark_stream.structs import INT64_MAX, Positional

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Ranges = Mapping[int, tuple[int, int]]
"""The first and the last offset of a file, by partition."""


class OldFile(Positional):
    """A file of a table. ``newest_ms``: the time of its last record, or one after it."""

    path: str
    size: int
    newest_ms: int
    ranges: Ranges


def trim_table(table: Table, cluster: str, topic: TopicState) -> Script[int]:
    """Remove the files that retention no longer keeps. Return their number."""
    yield from catch_up(table)
    table.check(cluster, topic.id)
    if max(topic.retention_ms, topic.retention_bytes) < 0:
        return 0
    now_ms = yield from Now()
    mixed = [each for each in table.files.values() if range_of(each) is None]
    ranges = (yield from FindRanges(table.at, mixed)) if mixed else {}
    files = [_old_file(each, ranges.get(each.path)) for each in table.files.values()]
    oldest_ms = None if topic.retention_ms < 0 else now_ms - topic.retention_ms
    removed = expired(files, oldest_ms, topic.retention_bytes)
    firsts: dict[int, int] = {}
    for each in removed:
        for partition, (_, last) in each.ranges.items():
            firsts[partition] = max(firsts.get(partition, 0), last + 1)
    first_txns = [
        Action(txn=Txn(first_application(topic.id, partition), at, now_ms))
        for partition, at in sorted(firsts.items())
        if at > (table.first_offset(topic.id, partition) or 0)
    ]
    return (yield from _remove(table, (cluster, topic.id), [f.path for f in removed], first_txns))


def trim_cuts(cuts: Table, cluster: str, lake_id: str) -> Script[int]:
    """Remove the files of cuts whose versions may all have expired. Return their number."""
    yield from catch_up(cuts)
    cuts.check(cluster, lake_id)
    oldest_ms = (yield from Now()) - duration_ms(cuts, LOG_RETENTION, LOG_RETENTION_MS)
    times = {path: newest_ms(each, each.statistics.newest_cut) for path, each in cuts.files.items()}
    last = max(times.values(), default=0)
    old = [path for path, at in times.items() if at < min(oldest_ms, last)]
    return (yield from _remove(cuts, (cluster, lake_id), old, []))


def _remove(
    table: Table, of: tuple[str, str], paths: Collection[str], txns: list[Action]
) -> Script[int]:
    if not paths:
        return 0
    mark = yield from NewMark()
    for attempt in range(PUTS_MAX):
        table.check(*of)
        gone = [path for path in paths if path not in table.files]
        if gone:
            return 0 if len(gone) < len(paths) else len(paths)
        now_ms = yield from Now()
        actions = [commit_info("DELETE", now_ms, mark), *_not_append_only(table), *txns]
        actions += [Action(remove=table.files[path].removed(now_ms)) for path in paths]
        yield from put(table, actions, may_retry=attempt + 1 < PUTS_MAX)
    return 0


def _not_append_only(table: Table) -> list[Action]:
    """Return the change of a table from which rows may be removed."""
    metadata = table.metadata
    if metadata is None or metadata.configuration.get(APPEND_ONLY) != "true":
        return []
    configuration = metadata.configuration | {APPEND_ONLY: "false"}
    return [Action(metadata=replace(metadata, configuration=configuration))]


def _old_file(file: AddFile, ranges: Ranges | None) -> OldFile:
    found = range_of(file)
    if found is not None:
        ranges = {found.partition: (found.first, found.last)}
    return OldFile(file.path, file.size, newest_ms(file, file.statistics.newest), ranges or {})


def newest_ms(file: AddFile, newest: datetime | None) -> int:
    """Return the time of a file's last record, or that of the file if its statistics lack it.

    ``newest``: the time in the statistics.

    Other programs write statistics of the first 32 columns. A file is written after its records, so
    its time removes none early. Kafka uses the time of a segment's file in the same way.
    """
    if newest is None:
        return file.modification_time or INT64_MAX
    return (newest - _EPOCH) // timedelta(milliseconds=1)


def expired(files: Iterable[OldFile], oldest_ms: int | None, retention_bytes: int) -> list[OldFile]:
    """Return the files to remove, by age and by the size of each partition.

    ``oldest_ms``: the time of the oldest record that is kept, or None. ``retention_bytes``: as
    ``retention.bytes`` of a log. A partition has its share of a file with several ones.
    """
    files = sorted(files, key=lambda each: min((r[0] for r in each.ranges.values()), default=0))
    sizes: dict[int, float] = {}
    for each in files:
        for partition in each.ranges:
            sizes[partition] = sizes.get(partition, 0) + each.size / len(each.ranges)
    found: list[OldFile] = []
    for each in files:
        share = each.size / max(1, len(each.ranges))
        too_old = oldest_ms is not None and each.newest_ms < oldest_ms
        too_much = retention_bytes >= 0 and all(
            sizes[partition] - share >= retention_bytes for partition in each.ranges
        )
        if each.ranges and (too_old or too_much):
            found.append(each)
            for partition in each.ranges:
                sizes[partition] -= share
    return _below_all_others(files, found)


def _below_all_others(files: list[OldFile], found: list[OldFile]) -> list[OldFile]:
    """Return the files of ``found`` with offsets below those of all files that stay."""
    while True:
        paths = {each.path for each in found}
        least: dict[int, int] = {}
        for each in files:
            if each.path not in paths:
                for partition, (first, _) in each.ranges.items():
                    least[partition] = min(first, least.get(partition, first))
        below = [
            each
            for each in found
            if all(last < least.get(p, last + 1) for p, (_, last) in each.ranges.items())
        ]
        if len(below) == len(found):
            return found
        found = below
