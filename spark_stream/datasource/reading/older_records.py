"""The tables of a query's topics in its plan: starts, sizes and times below the log start.

The log start of a topic with a table is the first offset of the table, for all decisions of a plan.
So "earliest" starts there, and no record of the table counts as lost. The tasks find out at the
leader which records are removed, so a log start may move after the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from spark_stream.client.lake_tables import (
    NEVER,
    ONLY,
    Covered,
    LakeTables,
    first_recorded_cut,
    last_recorded_cut,
)
from spark_stream.client.topics import TopicsClient
from spark_stream.datasource.options.query import SourceOptions
from spark_stream.datasource.spark.session import session
from spark_stream.datasource.values.limits import Place
from spark_stream.datasource.values.offsets import Offsets, Range, TopicOffsets, known_offsets
from spark_stream.errors import LakeIncomplete
from spark_stream.wire.messages import EARLIEST
from spark_stream.wire.topic_messages import PartitionOffset, PartitionOffsets, TopicDescription


class OlderRecords:
    """The tables that one query reads. Without a lake, or with ``lake=never``, it changes nothing.

    It remembers the log starts of the last look-up. A missing table is an error for a query that
    needs records of it, and for no other one.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._log_starts: dict[Place, int] = {}
        """The log starts of partitions with records in a table that the log has removed."""
        self._missing: dict[str, LakeIncomplete] = {}
        """The errors of topics whose first records are in a missing table."""

    @property
    def _topics(self) -> TopicsClient:
        return session(self._options.place).topics

    @property
    def _tables(self) -> LakeTables:
        return session(self._options.place).tables

    def extended(
        self, latest: Mapping[str, PartitionOffsets], seen: Iterable[Offsets]
    ) -> dict[str, PartitionOffsets]:
        """Return the look-up with the first offsets of tables as log starts.

        With ``lake=only`` the bounds are those of the tables. ``seen``: the query's offsets, its
        start first.

        Raises:
            LakeIncomplete: The query has read to an offset that only a missing table has.
        """
        if self._options.lake == NEVER:
            return dict(latest)
        found = {}
        for name, at in latest.items():
            starts = at.log_start_offsets
            if self._options.lake == ONLY:
                found[name] = self._in_table(name, at)
            elif not any(starts.values()):
                found[name] = at
            else:
                firsts = self._firsts(name, at.topic_id, starts, list(seen))
                self._log_starts |= {
                    (name, n): start for n, start in starts.items() if firsts.get(n, start) < start
                }
                found[name] = replace(
                    at,
                    partitions={
                        n: replace(each, log_start_offset=firsts.get(n, each.log_start_offset))
                        for n, each in at.partitions.items()
                    },
                )
        return found

    def _firsts(
        self, name: str, topic_id: str, starts: Mapping[int, int], seen: Sequence[Offsets]
    ) -> dict[int, int]:
        """Return the first offsets of partitions in which the query begins below the log start."""
        topic = self._topics.known(name)
        at = known_offsets(seen[0], name, topic_id) if seen else {}
        below = {
            n: start
            for n, start in starts.items()
            if at.get(n, 0) < start and (n in at or self._options.selection.takes(name, n))
        }
        if seen and below and not topic.lakes:
            topic = self._topics.describe(name)  # a lake may be new
        if topic.id != topic_id:
            return {}
        try:
            self._missing.pop(name, None)
            return self._tables.first_offsets(topic, below)
        except LakeIncomplete as error:
            if seen:
                raise
            self._missing[name] = error
            return {}

    def check_first(self, name: str) -> None:
        """Check that the first records of a topic are in the log, or in a table.

        Raises:
            LakeIncomplete: The table is missing.
        """
        if name in self._missing:
            raise self._missing[name]

    def _in_table(self, name: str, at: PartitionOffsets) -> PartitionOffsets:
        covered = self._covered(self._topics.describe(name), at.topic_id)

        def moved(number: int, each: PartitionOffset) -> PartitionOffset:
            here = covered.get(number)
            first, end = (0, 0) if here is None else (here.offsets.first, here.offsets.end)
            return replace(each, offset=end, log_start_offset=first, log_end_offset=end, lineage=())

        return replace(at, partitions={n: moved(n, each) for n, each in at.partitions.items()})

    def _covered(self, topic: TopicDescription, topic_id: str) -> dict[int, Covered]:
        return self._tables.covered(topic) if topic.id == topic_id else {}

    def offsets_at(self, name: str, time_us: int, numbers: list[int]) -> dict[int, int]:
        """Return the first offset in each partition whose record is not older than a time."""
        choice, isolation = self._options.lake, self._options.isolation
        topic = self._topics.known(name)
        if choice == ONLY:
            found = self._tables.offsets_of_time(topic, time_us)
            return {number: found.get(number, 0) for number in numbers}
        looked = self._topics.offsets(
            name, timestamp_us=time_us, isolation=isolation, partitions=numbers
        ).offsets
        if choice == NEVER or not topic.lakes:
            return looked
        starts = self._topics.offsets(name, at=EARLIEST, partitions=numbers).offsets
        return looked | self._tables.first_at(topic, time_us, starts)

    # -- limits -----------------------------------------------------------------------------------

    def in_log(self, asked: Iterable[Range]) -> list[Range]:
        """Return the parts of the ranges that the log has."""
        found = []
        for each in asked:
            start = max(each.start, self._log_start(each))
            if self._options.lake != ONLY and start < each.end:
                found.append(replace(each, start=start))
        return found

    def _log_start(self, asked: Range) -> int:
        return self._log_starts.get((asked.topic, asked.partition), 0)

    def _edge(self, asked: Range) -> int:
        """Return the end of the part of a range that is read from a table."""
        return asked.end if self._options.lake == ONLY else min(asked.end, self._log_start(asked))

    def sizes(self, asked: Iterable[Range]) -> dict[Place, tuple[int, int]]:
        """Return the bytes of the parts in tables, and those of an average record there."""
        found = {}
        for each in asked:
            end = self._edge(each)
            if each.start < end:
                size = self._bytes(each, end)
                found[each.topic, each.partition] = size, -(-size // (end - each.start))
        return found

    def _bytes(self, asked: Range, end: int) -> int:
        return self._tables.stored_bytes(
            asked.topic, asked.topic_id, asked.partition, asked.start, end
        )

    def reached(
        self, asked: Iterable[Range], budgets: Mapping[Place, int]
    ) -> tuple[dict[Place, int], dict[Place, int]]:
        """Return the budgets that are left for the log, and the ends of ranges within tables."""
        left, ends = dict(budgets), {}
        for each in asked:
            place, end = (each.topic, each.partition), self._edge(each)
            if each.start >= end:
                continue
            size, budget = self._bytes(each, end), budgets.get(place, 0)
            if budget >= size and end < each.end:
                left[place] = budget - size
                continue
            records = end - each.start
            taken = min(records, records * budget // size if size else records)
            ends[place] = each.start + max(taken, min(1, budget))
        return left, ends

    def is_below_log(self, offsets: Offsets) -> bool:
        """Return whether an offset is below the log start, where the log has no transactions."""
        return any(
            at < self._log_starts.get((name, number), 0)
            for name, topic in offsets.items()
            for number, at in topic.offsets.items()
        )

    def cut_below(self, ends: Offsets) -> Offsets:
        """Return the greatest recorded cut of the lake that is nowhere above the ends."""
        found = last_recorded_cut(self._cuts(ends), flat(ends))
        return moved(ends, found or dict.fromkeys(flat(ends), 0))

    def cut_between(self, begin: Offsets, limited: Offsets, ends: Offsets) -> Offsets:
        """Return the end of a micro-batch within the limit, at a recorded cut above the start.

        If no cut is within the limit, it is the least one, or ``ends``.
        """
        start = {
            (name, number): known_offsets(begin, name, topic.id).get(number, 0)
            for name, topic in limited.items()
            for number in topic.offsets
        }
        cuts = self._cuts(limited)
        found = last_recorded_cut(cuts, flat(limited))
        if not found or any(found[key] < at for key, at in start.items()) or found == start:
            found = first_recorded_cut(cuts, start)
        last = flat(ends)
        if not found or any(at > last.get(key, at) for key, at in found.items()):
            return ends
        return moved(ends, found)

    def _cuts(self, offsets: Offsets) -> list[dict[Place, int]]:
        return self._tables.recorded_cuts({name: topic.id for name, topic in offsets.items()})


def flat(offsets: Offsets) -> dict[Place, int]:
    """Return the offsets by topic and partition."""
    return {
        (name, number): at
        for name, topic in offsets.items()
        for number, at in topic.offsets.items()
    }


def moved(offsets: Offsets, to: Mapping[Place, int]) -> dict[str, TopicOffsets]:
    """Return the same partitions at other offsets."""
    return {
        name: topic.moved({n: to.get((name, n), at) for n, at in topic.offsets.items()})
        for name, topic in offsets.items()
    }
