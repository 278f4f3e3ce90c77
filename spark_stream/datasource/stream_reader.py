"""The streaming source. Its offsets are the log's; Spark's checkpoint keeps them.

What Spark does, and what follows (facts in ``docs/spark.md``):

* ``initialOffset`` is asked for again on a restart if batch 0 was not committed. A start that moves
  ("latest") would then be another. So the first batch of a query with a moving start is empty, and
  ends where it starts: Spark writes that into its checkpoint, and there the start is pinned before
  the first record is read. A start above the logged end is then an empty range, with nothing lost.
  With the option ``consumer`` the store has the start instead (``naming``).
* limits count records (aborted ones as well, where their level hides them), and are shared out by
  backlog; ``ReadAllAvailable`` means no limit. Under read_atomic a batch ends at a cut: it may be
  smaller than the limit, and is larger where one transaction is.
* with Trigger.AvailableNow the end is fixed once, at the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_stream.datasource.naming import NamedQuery
from spark_stream.datasource.offsets import (
    Offsets,
    TopicOffsets,
    known_offsets,
    ranges,
)
from spark_stream.datasource.options import SourceOptions
from spark_stream.datasource.pacing import shared_out
from spark_stream.datasource.plainly import plainly
from spark_stream.datasource.planning import Planner
from spark_stream.datasource.reader import RangeReader
from spark_stream.datasource.starts import Resolved, resolved
from spark_stream.datasource.types import to_arrow
from spark_stream.errors import Unsupported
from spark_stream.wire.messages import EARLIEST


class IsologStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source: lives on the driver; ``read`` runs on copies in workers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._planner = Planner.of(options)
        self._ranges = RangeReader(self._planner.options, schema)
        self._planner.check_projection(to_arrow(schema))
        self._initial: dict[str, TopicOffsets] | None = None
        self._pinned = True
        self._target: dict[str, TopicOffsets] | None = None
        name = self._planner.options.consumer
        self._named = None if name is None else NamedQuery(self._planner, name)

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:  # Spark asks twice, and must get one answer
            if self._named is None:
                found = self._first_start()
                self._initial, self._pinned = found.offsets, not found.moving
            else:
                self._initial = self._named.pinned_start(lambda: self._first_start().offsets)
        return self._planner.logged(self._initial)

    def _first_start(self) -> Resolved:
        return resolved(self._planner, self._planner.options.starting, EARLIEST)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._planner.options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.latest().offsets()

    @plainly
    def reportLatestOffset(self) -> dict[str, Any]:
        return self._planner.logged(self._planner.latest().offsets())

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin: Offsets = self._planner.read_back(start)
        if self._named is not None:
            self._named.tell(begin)  # Spark plans a micro-batch when the one before it is done
        if not self._pinned:
            self._pinned = True
            if begin == self._initial:
                return start
        begin = self._planner.still_selected(begin)
        now = self._planner.latest(begin)
        begin = self._planner.with_new_topics(self._planner.losses.kept(begin, now), now)
        ends: Offsets = self._planner.losses.ends(begin, now)
        if self._target is not None:
            ends = _capped(begin, ends, self._target)
        if isinstance(limit, ReadMaxRows):
            limited: Offsets = _limited(begin, ends, limit.max_rows)
            if self._planner.atomic and limited != ends:
                limited = self._planner.cut_between(begin, limited, ends)
            ends = limited
        elif not isinstance(limit, ReadAllAvailable):
            raise Unsupported(f"Spark asks for a read limit that isolog does not know: {limit}")
        return self._planner.logged(ends)

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = self._planner.read_back(start), self._planner.read_back(end)
        if begin == until:
            return []
        # A batch that is planned again after a restart was planned over an earlier log: its end may
        # be above what is left of it, just as its start.
        losses = self._planner.losses
        now = self._planner.latest(begin, until, reading=ranges(begin, until))
        asked = ranges(losses.kept(begin, now), losses.kept(until, now))
        new = until.keys() - begin.keys()
        return [InputPartition(each) for each in losses.readable(asked, now, new)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Tells how far the query is: retention does not wait, and Spark's checkpoint has it."""
        if self._named is not None:
            self._named.tell(self._planner.read_back(end))

    def stop(self) -> None:
        """Nothing: the process's connection is shared with its other queries."""


def _capped(begin: Offsets, ends: Offsets, target: Offsets) -> dict[str, TopicOffsets]:
    """The ends, but none above the target; what the target does not know stays where it is."""
    capped = {}
    for name, topic in ends.items():
        goal = target.get(name)
        if goal is None or goal.id != topic.id:
            if name in begin:
                capped[name] = begin[name]
            continue
        at = known_offsets(begin, name, topic.id)
        capped[name] = topic.moved(
            {
                number: max(at.get(number, 0), min(end, goal.offsets.get(number, 0)))
                for number, end in topic.offsets.items()
            }
        )
    return capped


def _limited(begin: Offsets, ends: Offsets, limit: int) -> dict[str, TopicOffsets]:
    """The ends, so that at most ``limit`` records lie before them."""
    backlog = {
        (name, number): 0 for name, topic in sorted(ends.items()) for number in topic.offsets
    }
    for each in ranges(begin, ends):
        backlog[each.topic, each.partition] = each.end - each.start
    read = sum(sum(topic.offsets.values()) for topic in begin.values())
    taken = shared_out(backlog, limit, turn=read)
    return {
        name: topic.moved(
            {
                number: end - backlog[name, number] + taken[name, number]
                for number, end in topic.offsets.items()
            }
        )
        for name, topic in ends.items()
    }
