"""The streaming source. Its offsets are the log's, and Spark's checkpoint keeps them.

The driver plans a batch here, with ``planning``. Tasks fetch its records with ``reader``.

Facts of Spark, with their consequences (``docs/spark/facts.md`` has them all):

* Spark requests ``initialOffset`` again on a restart if batch 0 was not committed. A start that
  moves ("latest") would then be another. So the first batch of a query with a moving start is
  empty, and ends at its start: Spark writes that into its checkpoint, so the start is pinned before
  the first record is read. If the start is now above that end, the range is empty, and no record is
  lost. With the option ``consumer`` the store has the start instead (``named_query``).

* Limits count records (aborted ones too, if their level hides them), and are shared out by backlog.
  ``ReadAllAvailable`` means no limit. Under read_atomic a batch ends at a cut: it may be smaller
  than the limit, and it is larger if one transaction is. Spark's limit objects cannot express
  isolog's (``limits``), so Spark gets one only to pass it back.

* With Trigger.AvailableNow the end is fixed once, at the start, and the query waits for no more
  records.

* A trigger looks at the log once: ``partitions`` and ``reportLatestOffset`` of that trigger use the
  result of ``latestOffset``. The tasks detect later losses by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyspark
from msgspec import Struct
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_stream.datasource.options import SourceOptions
from spark_stream.datasource.reading.bounds import ResolvedOffsets, resolve
from spark_stream.datasource.reading.named_query import NamedQuery
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.reading.reader import RangeReader
from spark_stream.datasource.spark.pickling import WorkerPickled
from spark_stream.datasource.spark.releases import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_stream.datasource.spark.workers import with_spark_errors
from spark_stream.datasource.values.limits import BatchLimiter, tasks
from spark_stream.datasource.values.offsets import (
    LogState,
    Offsets,
    TopicOffsets,
    known_offsets,
    ranges,
)
from spark_stream.errors import Unsupported
from spark_stream.loggers import logger_of
from spark_stream.structs import INT64_MAX
from spark_stream.wire.messages import EARLIEST

logger = logger_of(__name__)


class _Planned(Struct, frozen=True):
    """A micro-batch from ``begin`` to ``ends``, with the state of the log when it was planned."""

    begin: Offsets
    ends: Offsets
    now: LogState

    def covers(self, begin: Offsets, until: Offsets) -> bool:
        """Return whether this is the plan of that batch, and is complete.

        The warning about uncommitted records needs the batch's end, so it takes another look-up.
        """
        if begin != self.begin or until != self.ends:
            return False
        return all(
            not at.uncommitted
            and known_offsets(begin, name, at.topic_id).keys() >= at.partitions.keys()
            for name, at in self.now.latest.items()
        )


class IsologStreamReader(WorkerPickled, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query on the driver. ``read`` runs on copies in workers."""

    pickled_attributes = ("_ranges",)

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._planner = Planner.of(options, lasting=True)
        self._ranges = RangeReader(self._planner.options, schema)
        self._planner.check_projection(schema)
        self._pace = BatchLimiter(self._planner.options.limits, self._planner, time.monotonic)
        self._planned: _Planned | None = None
        self._initial: dict[str, TopicOffsets] | None = None
        self._pinned = True
        self._target: dict[str, TopicOffsets] | None = None
        self._last_end: dict[str, Any] | None = None
        self._unassisted_plans = 0
        self._continued = False
        name = self._planner.options.consumer
        self._named = None if name is None else NamedQuery(self._planner, name, lasting=True)

    @with_spark_errors
    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:  # Spark calls this twice, and must get one answer
            if self._named is None:
                found = self._first_start()
                self._initial, self._pinned = found.offsets, not found.moving
            else:
                self._initial = self._named.pinned_start(self._first_offsets)
        return self._planner.logged(self._initial)

    def _first_start(self) -> ResolvedOffsets:
        return resolve(self._planner, self._planner.options.starting, EARLIEST)

    def _first_offsets(self) -> Offsets:
        return self._first_start().offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._planner.options.limits
        return ReadMaxRows(limits.max_offsets or INT64_MAX) if limits.any else ReadAllAvailable()

    @with_spark_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.latest().offsets()

    @with_spark_errors
    def reportLatestOffset(self) -> dict[str, Any]:
        now = self._planner.latest() if self._planned is None else self._planned.now
        return self._planner.logged(now.offsets())

    @with_spark_errors
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is not None and limit is not None:
            return self._next_end(start, limit)
        # Spark 4.1 and 4.0 (releases)
        self._unassisted_plans += 1
        start = self.initialOffset() if self._last_end is None else self._last_end
        self._last_end = self._next_end(start, self.getDefaultReadLimit())
        return self._last_end

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the micro-batch from this start, or the start if there is none."""
        asked = self._planner.read_back(start)
        if self._named is not None:
            self._named.note_plan()
            self._named.record(asked)  # Spark plans a micro-batch when the one before it is done
        if not self._pinned:
            self._pinned = True
            if asked == self._initial:
                return start
        selected = self._planner.still_selected(asked)
        now = self._planner.latest(selected, watched=selected)
        begin = self._planner.with_new_topics(self._planner.losses.kept(selected, now), now)
        ends = self._ends(begin, now, limit)
        # A cut log moves the begin back, and its next end may have the numbers of the start.
        if ends is None or _have_equal_offsets(asked, begin, ends):
            self._planned = _Planned(asked, asked, now)
            return start  # unchanged, because Spark plans a batch for any other JSON
        self._planned = _Planned(asked, ends, now)
        return self._planner.logged(ends)

    def _ends(self, begin: Offsets, now: LogState, limit: ReadLimit) -> Offsets | None:
        """Return the end of the next micro-batch in the present log, or None to wait."""
        ends: Offsets = self._planner.losses.ends(begin, now)
        if self._target is not None:
            ends = _capped(begin, ends, self._target)
        if isinstance(limit, ReadAllAvailable):
            return ends
        if not isinstance(limit, ReadMaxRows):
            raise Unsupported(f"isolog does not support this read limit of Spark: {limit}")
        left = self._planner.losses.passed_over(begin, now)
        # An unassisted run may end after its first plan, so this plan has no minimum.
        may_wait = self._target is None and self._unassisted_plans != 1
        if may_wait and self._pace.awaits_more(left, ends):
            return None
        limited: Offsets = self._pace.limited(left, ends)
        if self._planner.atomic and limited != ends:
            limited = self._planner.cut_between(begin, limited, ends)
        return limited

    @with_spark_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = self._planner.read_back(start), self._planner.read_back(end)
        if self._unassisted_plans == 0:  # a restart: from now on the plans have the starts
            self._last_end, self._continued = end, True
        if begin == until:
            if self._unassisted_plans == 1 and not self._continued:
                self._check_wrapped(until)
            return []
        if self._named is not None:
            self._named.record(begin)  # a restarted query begins with this call
        # After a restart Spark plans the last micro-batch again. The log may have been truncated
        # since, so the start and the end may be above the log's present end.
        losses = self._planner.losses
        planned = self._planned
        if planned is not None and planned.covers(begin, until):
            now = planned.now
        else:
            self._planner.check_checkpoint(until)
            now = self._planner.latest(begin, until, reading=ranges(begin, until))
        asked = ranges(losses.kept(begin, now), losses.kept(until, now))
        new = until.keys() - begin.keys()
        readable = losses.readable(asked, now, new)
        return [InputPartition(each) for each in tasks(readable, self._planner.options.splitting)]

    def _check_wrapped(self, checkpoint: Offsets) -> None:
        """Check the end that Spark's wrapper of the trigger fixed without the checkpoint.

        Raises:
            Unsupported: the query has a limit, or the end is below the checkpoint's.
        """
        first, fixed = map(self._planner.read_back, (self.initialOffset(), self._last_end or {}))
        if _have_equal_offsets(first, checkpoint):
            return  # also the first micro-batch of a new query, without records
        if self._planner.options.limits.any or any(ranges(fixed, _shared(checkpoint, fixed))):
            raise Unsupported(
                "the setting spark.sql.streaming.triggerAvailableNowWrapper.enabled: its"
                " micro-batch would have a limit, or end before the checkpoint",
                hint="Remove the limits, and keep the isolation level. Or set this setting"
                " to false.",
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Record the query's progress for display only: retention ignores it."""
        if self._named is not None:
            self._named.record(self._planner.read_back(end))

    def stop(self) -> None:
        """Record the end of a named query. The process's connection is shared, and stays open."""
        if self._named is not None:
            self._named.end()
        if self._unassisted_plans == 1 and self._planner.options.limits.any:
            logger.warning(
                "the query planned one micro-batch, with a limit. With PySpark %s"
                " Trigger.AvailableNow ends after one. Remove the limit, or use PySpark 4.2.",
                pyspark.__version__,
            )


def _have_equal_offsets(*offsets: Offsets) -> bool:
    """Return whether all have the same topics at the same offsets, in whatever lineages."""
    first, *others = ({name: (at.id, at.offsets) for name, at in each.items()} for each in offsets)
    return all(each == first for each in others)


def _shared(offsets: Offsets, other: Offsets) -> dict[str, TopicOffsets]:
    """Return the offsets of the topics that both have."""
    return {name: at for name, at in offsets.items() if name in other and other[name].id == at.id}


def _capped(begin: Offsets, ends: Offsets, target: Offsets) -> dict[str, TopicOffsets]:
    """Lower the ends to the target. Partitions that it does not have keep their offsets."""
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
