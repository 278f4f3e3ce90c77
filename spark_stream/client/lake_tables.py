"""The tables of a log's topics, for records that retention has removed from the log.

A reader below the log start continues in a table of the topic's lake, and returns to the log at its
start. Tables have committed records only, so below the log start each isolation level returns
these. Filters are applied here.

**A missing table is an error.** Brokers have the offset that a worker has read back from its table
(``TopicLake.tiered``). A table that ends before it is missing, or an older copy. A reader that
needs the missing records raises LakeIncomplete, and never skips them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import conformed
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.topics import Key, Place, TopicsClient, resolve
from spark_stream.client.values import to_microseconds
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lakes import TopicLake
from spark_stream.errors import InvalidOption, LakeIncomplete, LakeUnavailable
from spark_stream.lake.cuts import CUTS
from spark_stream.lake.data_files import is_missing
from spark_stream.lake.delta.table import Table
from spark_stream.lake.reading import (
    Coverage,
    coverage,
    first_at,
    read_cuts,
    read_rows,
    stored_bytes,
)
from spark_stream.lake.storage.snapshots import read_table, refresh, sync_table
from spark_stream.lake.storage.stores import LakeStore, open_store
from spark_stream.schema.schemas import LEADER_COLUMNS, OFFSET, empty_batch
from spark_stream.sql.filters import row_filter
from spark_stream.sql.predicates import RowFilter
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import TopicDescription

AUTO: Final = "auto"
NEVER: Final = "never"
ONLY: Final = "only"
_READS_MAX: Final = 5


def checked_choice(choice: str, *accepted: str) -> str:
    """Return the value of an option ``lake``. Raise InvalidOption for another one."""
    if choice not in accepted:
        raise InvalidOption(
            f"lake takes {' | '.join(accepted)}, not {choice!r}", option="lake", value=choice
        )
    return choice


def last_recorded_cut(
    cuts: Sequence[Mapping[Key, int]], upper: Mapping[Key, int]
) -> dict[Key, int]:
    """Return the last recorded cut that is nowhere above these offsets. Empty without one."""
    for cut in reversed(cuts):
        if all(cut.get(key, 0) <= at for key, at in upper.items()):
            return {key: cut.get(key, 0) for key in upper}
    return {}


def first_recorded_cut(
    cuts: Sequence[Mapping[Key, int]], lower: Mapping[Key, int]
) -> dict[Key, int]:
    """Return the first recorded cut above these offsets, and nowhere below. Empty without one."""
    for cut in cuts:
        found = {key: cut.get(key, 0) for key in lower}
        if found != dict(lower) and all(found[key] >= at for key, at in lower.items()):
            return found
    return {}


def check_one_cut(topics: Collection[str], isolation: Isolation) -> None:
    """Raise InvalidOption for an atomic read of several tables, whose ends may be of two cuts."""
    if isolation is Isolation.READ_ATOMIC and len(topics) > 1:
        raise InvalidOption(
            "lake=only with read_atomic takes one topic: tables of several topics may end at"
            " different cuts",
            option="lake",
            hint="Leave out lake=only. The log then has the cut.",
        )


class OpenTable:
    """A topic's table in one lake, with the files of its location. Any thread may use it.

    ``table`` is a snapshot: :meth:`catch_up` replaces it, and changes no earlier one.
    """

    def __init__(self, lake: TopicLake, files: LakeStore, table: Table) -> None:
        self.lake = lake
        self.files = files
        self.table = table
        self._lock = new_lock(is_brief=False)

    def catch_up(self) -> None:
        """Apply the new versions of the table."""
        with self._lock:
            table = copied(self.table)
            refresh(self.files, table)
            if table.version != self.table.version:
                self.table = table

    def check_has(self, topic: TopicDescription, partition: int, offset: int) -> None:
        """Check that the table has an offset, if its worker has copied it.

        Raises:
            LakeIncomplete: The table is missing, or is an older copy that ends before the offset.
        """
        reached = self.lake.tiered.get(partition, 0)
        end = self._end(topic.id, partition)
        if end <= offset < reached:
            raise self._incomplete(partition, end, reached)

    def check_copied(self, topic_id: str) -> None:
        """Check that the table has all records that its worker has copied.

        Raises:
            LakeIncomplete: The table is missing, or is an older copy.
        """
        for partition, reached in sorted(self.lake.tiered.items()):
            end = self._end(topic_id, partition)
            if end < reached:
                raise self._incomplete(partition, end, reached)

    def check_files(self) -> None:
        """Check that all files of the table exist with their sizes, and make their folders durable.

        Raises:
            LakeIncomplete: A file is missing or truncated.
            LakeUnavailable: The location did not answer.
        """
        if self.table.version < 0:
            return
        sizes = {path: each.size for path, each in self.table.files.items()}
        if lost := sync_table(self.files, self.table.at, sizes):
            raise LakeIncomplete(
                f"{len(lost)} files of the table {self.table.at!r} are missing or truncated at"
                f" {self.lake.location}, such as {lost[0]}",
                hint="Copy the table again.",
                table=self.table.at,
                location=self.lake.location,
            )

    def _end(self, topic_id: str, partition: int) -> int:
        covered = coverage(self.table, topic_id, partition)
        return 0 if covered is None else covered.end

    def _incomplete(self, partition: int, end: int, reached: int) -> LakeIncomplete:
        fault = "is missing" if self.table.metadata is None else "is an older copy"
        return self.lacks(
            f"the table {self.table.at!r} of the lake {self.lake.name!r} {fault} at"
            f" {self.lake.location}: it ends at offset {end} of partition {partition}, and its"
            f" worker has copied the records below offset {reached}",
            partition,
            end,
        )

    def lacks(self, fault: str, partition: int, offset: int) -> LakeIncomplete:
        """Return the error for records from an offset on that the table lacks."""
        return LakeIncomplete(
            fault,
            table=self.table.at,
            location=self.lake.location,
            partition=partition,
            offset=offset,
        )


def open_table(lake: TopicLake, name: str) -> OpenTable:
    """Open the table of a topic, at its last version."""
    files = open_store(lake.location)
    return OpenTable(lake, files, read_table(files, name))


def copied(table: Table) -> Table:
    """Return a copy of a table that can be changed by itself."""
    return dataclasses.replace(
        table,
        txns=dict(table.txns),
        files=dict(table.files),
        removed=dict(table.removed),
        unconfirmed=set(table.unconfirmed),
    )


class Covered(Struct, frozen=True):
    """A table that has the records of a partition from an offset on."""

    opened: OpenTable
    offsets: Coverage


class LakeTables:
    """The tables of all topics of a log. Each is opened when a reader first needs it.

    Raises, in all methods:
        LakeUnavailable: The location of a lake did not answer.
        LakeIncomplete: A table is missing, or lacks records that its worker has copied.
        LakeStopped: A table is not complete, or another topic's.
    """

    def __init__(self, connection: ClusterConnection, topics: TopicsClient) -> None:
        self._connection = connection
        self._topics = topics
        self._lock = new_lock()
        self._tables: dict[tuple[str, str], OpenTable] = {}

    def of_topic(self, topic: TopicDescription, *, fresh: bool = False) -> list[OpenTable]:
        """Return the tables of a topic, in each of its lakes. ``fresh``: at the last versions."""
        found = []
        for lake in topic.lakes:
            opened = self._opened(lake, topic.name, topic.id, fresh=fresh)
            if opened.table.metadata is not None:  # else the worker has not created it yet
                opened.table.check(self._connection.cluster_id or "", topic.id)
            found.append(opened)
        return found

    def _opened(self, lake: TopicLake, name: str, of: str, *, fresh: bool) -> OpenTable:
        opened = self._tables.get((lake.id, of))
        if opened is None or opened.lake.location != lake.location:  # the lake was moved
            opened = open_table(lake, name)
            with self._lock:
                self._tables[lake.id, of] = opened
            return opened
        opened.lake = lake  # a later description has later offsets
        if fresh:
            opened.catch_up()
        return opened

    def covering(self, name: str, topic_id: str, partition: int, offset: int) -> Covered | None:
        """Return the table with the longest coverage from this offset on, or None."""
        topic = self._topics.known(name)
        for fresh in (False, True):
            if fresh:
                topic = self._topics.describe(name)
            if topic.id != topic_id:
                continue
            tables = self.of_topic(topic, fresh=fresh)
            found = [
                Covered(each, covered)
                for each in tables
                if (covered := coverage(each.table, topic_id, partition)) is not None
                and covered.first <= offset < covered.end
            ]
            if found:
                return max(found, key=lambda each: each.offsets.end)
            for each in tables if fresh else ():
                each.check_has(topic, partition, offset)
        return None

    def read(
        self,
        name: str,
        topic_id: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str],
        filter: str | None,
    ) -> Iterator[tuple[int, pa.RecordBatch]] | None:
        """Return the rows of ``[start, end)`` in batches, each with the offset after it.

        Return None if no table has ``start``. The last batch may be empty. It has the end of the
        table, if that is below ``end``. Batches have ``columns`` and the offset.
        """
        first = self.covering(name, topic_id, partition, start)
        if first is None:
            return None
        schema = self._topics.known(name).schema
        bound = None if filter is None else row_filter(filter, name, schema, partition)
        rows = _Rows(self, name, topic_id, partition, end, columns, bound, schema)
        return rows.from_table(first, start)

    def covered(self, topic: TopicDescription) -> dict[int, Covered]:
        """Return the table with the most offsets of each partition, at its last version."""
        found: dict[int, Covered] = {}
        tables = self.of_topic(topic, fresh=True)
        for opened in tables:
            for each in topic.partitions:
                here = coverage(opened.table, topic.id, each.partition)
                known = found.get(each.partition)
                if here is not None and (known is None or known.offsets.end < here.end):
                    found[each.partition] = Covered(opened, here)
        for opened in tables:
            for number, reached in opened.lake.tiered.items():
                if reached > (found[number].offsets.end if number in found else 0):
                    opened.check_has(topic, number, reached - 1)
        return found

    def place_in_table(self, topic: TopicDescription, place: Place, default: int) -> dict[int, int]:
        """Return the offset of a place in each partition of the table.

        ``default``: for partitions that a mapping omits. Partitions without a commit are left out.
        """
        if isinstance(place, datetime):
            return self.offsets_of_time(topic, to_microseconds(place))
        found = {}
        for number, each in self.covered(topic).items():
            first, end = each.offsets.first, each.offsets.end
            chosen = place.get(number, default) if isinstance(place, Mapping) else place
            named = {"earliest": first, EARLIEST: first, "latest": end, LATEST: end}
            chosen = named.get(chosen, chosen)
            if not isinstance(chosen, int) or chosen < 0:
                raise InvalidOption(f"{chosen!r} is no place in a table")
            found[number] = min(end, chosen)
        return found

    def offsets_of_time(self, topic: TopicDescription, time_us: int) -> dict[int, int]:
        """Return the first offset of each partition of the table that is not older than a time."""
        found = {}
        for number, each in self.covered(topic).items():
            end = each.offsets.end
            at = _first_at(each, number, time_us, end)
            found[number] = end if at is None else at
        return found

    def stored_bytes(self, name: str, topic_id: str, partition: int, start: int, end: int) -> int:
        """Return the approximate size of a range in the table, at least 1 if it has the start."""
        covered = self.covering(name, topic_id, partition, start)
        if covered is None:
            return 0
        return max(1, stored_bytes(covered.opened.table, partition, start, end))

    def recorded_cuts(self, ids: Mapping[str, str]) -> list[dict[Key, int]]:
        """Return the cuts of a lake that has all of these topics (name and id), in their order.

        A cut divides no transaction. The log has no others below its start.
        """
        topics = [self._topics.known(name) for name in ids]
        lakes = [{lake.id: lake for lake in topic.lakes} for topic in topics]
        for lake_id, lake in (lakes[0] if lakes else {}).items():
            if not all(lake_id in each for each in lakes):
                continue
            opened = self._opened(lake, CUTS, lake_id, fresh=True)
            if opened.table.metadata is None:
                continue
            opened.table.check(self._connection.cluster_id or "", lake_id)
            names = {topic_id: name for name, topic_id in ids.items()}
            return [
                {
                    (names[each.topic_id], number): at
                    for each in cut.entries
                    if each.topic_id in names
                    for number, at in each.offsets.items()
                }
                for cut in reversed(list(read_cuts(opened.files, opened.table)))
            ]
        return []

    def first_offsets(
        self, topic: TopicDescription, log_starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the first offset of each partition in the table, or in the log if that is less.

        A table that ends before the log starts does not count, if its worker got no further.
        """
        return {
            number: min([log_start, *(each.offsets.first for each in found)])
            for number, log_start, found in self._before(topic, log_starts)
        }

    def first_at(
        self, topic: TopicDescription, time_us: int, log_starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the first offset below the log start that is not older, where there is one."""
        found: dict[int, int] = {}
        for number, log_start, tables in self._before(topic, log_starts):
            for each in tables:
                at = _first_at(each, number, time_us, log_start)
                if at is not None:
                    found[number] = min(at, found.get(number, at))
        return found

    def _before(
        self, topic: TopicDescription, log_starts: Mapping[int, int]
    ) -> Iterator[tuple[int, int, list[Covered]]]:
        """Yield partitions whose log start is above 0, with the tables that reach it."""
        removed = {number: at for number, at in log_starts.items() if at}
        tables = self.of_topic(topic) if removed else []
        for fresh in (False, True):
            found = {
                number: [
                    Covered(each, covered)
                    for each in tables
                    if (covered := coverage(each.table, topic.id, number)) is not None
                    and covered.first < log_start <= covered.end
                ]
                for number, log_start in removed.items()
            }
            if fresh or all(found.values()) or not tables:
                break
            now = self._topics.describe(topic.name)
            if now.id != topic.id:
                break
            topic, tables = now, self.of_topic(now, fresh=True)
        for number, log_start in removed.items():
            for each in () if found[number] else tables:
                each.check_has(topic, number, log_start - 1)
        for number, log_start in log_starts.items():
            yield number, log_start, found.get(number, [])

    def resolve(
        self, name: str, place: Place, isolation: Isolation, default: str
    ) -> dict[int, int]:
        """Return the offset of a place in each partition, in the table or in the log."""
        found = resolve(self._topics, name, place, isolation, default)
        earliest = set(found) if place == "earliest" else _named_earliest(place, found, default)
        if not any(found[number] for number in earliest) and not isinstance(place, datetime):
            return found
        topic = self._topics.describe(name)  # a lake may be new
        if not topic.lakes:
            return found
        starts = self._topics.offsets(name, at=EARLIEST, isolation=isolation).offsets
        if isinstance(place, datetime):
            return found | self.first_at(topic, to_microseconds(place), starts)
        return found | self.first_offsets(topic, {number: starts[number] for number in earliest})


def _first_at(covered: Covered, partition: int, time_us: int, end: int) -> int | None:
    """Return the first offset of the table below ``end`` that is not older than a time."""
    opened, first = covered.opened, covered.offsets.first
    for _ in range(_READS_MAX):
        try:
            return first_at(opened.files, opened.table, partition, time_us, first, end)
        except LakeUnavailable as error:
            if not is_missing(error):
                raise
            opened.catch_up()
    raise _without_files(opened, partition, first)


def _without_files(opened: OpenTable, partition: int, offset: int) -> LakeIncomplete:
    return opened.lacks(
        f"files of the table {opened.table.at!r} at {opened.lake.location} are missing at offset"
        f" {offset} of partition {partition}",
        partition,
        offset,
    )


def _named_earliest(place: Place, found: Mapping[int, int], default: str) -> set[int]:
    if isinstance(place, Mapping):
        left = EARLIEST if default == "earliest" else None
        return {number for number in found if place.get(number, left) == EARLIEST}
    return set(found) if place == EARLIEST else set()


class _Rows(Struct):
    """The rows of a range, from several versions of a table if files are merged in between."""

    tables: LakeTables
    name: str
    topic_id: str
    partition: int
    end: int
    columns: Sequence[str]
    filter: RowFilter | None
    schema: pa.Schema

    def from_table(self, covered: Covered, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        position = start
        for _ in range(_READS_MAX):
            end = min(self.end, covered.offsets.end)
            opened = covered.opened
            try:
                for batch in read_rows(
                    opened.files, opened.table, self.partition, position, end, self._needed()
                ):
                    position = int(batch.column(OFFSET.name)[-1].as_py()) + 1
                    yield position, self._matching(batch)
            except LakeUnavailable as error:
                if not is_missing(error):
                    raise
                opened.catch_up()
                found = self.tables.covering(self.name, self.topic_id, self.partition, position)
                if found is None:
                    break
                covered = found
                continue
            if position < end:
                yield end, empty_batch(self._schema([*self.columns, OFFSET.name]))
            return
        raise _without_files(covered.opened, self.partition, position)

    def _needed(self) -> list[str]:
        names = [] if self.filter is None else self.filter.names
        return list(dict.fromkeys([*self.columns, *names]))

    def _schema(self, names: Sequence[str]) -> pa.Schema:
        """Return these columns as the log has them."""
        chosen = dict.fromkeys(names)
        return pa.schema(
            self.schema.field(each) if each in self.schema.names else LEADER_COLUMNS[each]
            for each in chosen
        )

    def _matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows, in the types of the topic."""
        names = [*self._needed(), OFFSET.name]
        rows = conformed(batch, self._schema(names))
        if self.filter is not None:
            rows = rows.filter(self.filter.keeps(rows.column, rows.num_rows))
        return rows.select(list(dict.fromkeys([*self.columns, OFFSET.name])))
