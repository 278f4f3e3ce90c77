"""The batch source, and the fetching of ranges in a task, for batch queries and streams.

Spark passes its filters to a batch reader, and does not apply the filters that the reader takes. It
does so only if ``spark.sql.python.filterPushdown.enabled`` is on. If it is off, Spark refuses a
reader that would take filters. A reader cannot see that setting. But Spark passes the filters in a
Python worker that does nothing else, and all other workers only plan or read.

Spark keeps the filters that a reader took with the DataFrame, for all queries over it. So they are
taken only if the option ``pushFilters`` is set.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from decimal import Decimal, getcontext
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_stream.client.lake_tables import NEVER, ONLY
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Fetched, Source, fetched_from_table
from spark_stream.client.reading.loop import WantedRange
from spark_stream.client.reading.ranges import read_range, read_together
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.datasource.options import SourceOptions
from spark_stream.datasource.reading.bounds import check_order, resolve
from spark_stream.datasource.reading.losses import lost_with_topic, removed_by_retention
from spark_stream.datasource.reading.named_query import NamedQuery
from spark_stream.datasource.reading.planning import Planner, planned_view
from spark_stream.datasource.spark.pickling import WorkerPickled
from spark_stream.datasource.spark.session import session
from spark_stream.datasource.spark.types import text_rule, to_arrow
from spark_stream.datasource.spark.workers import with_spark_errors
from spark_stream.datasource.values.limits import Task, tasks
from spark_stream.datasource.values.offsets import LogState, Offsets, Range, ranges
from spark_stream.errors import (
    DataLoss,
    InvalidFilter,
    IsologError,
    NotVisibleYet,
    OffsetEvicted,
    SchemaMismatch,
    UnknownTopic,
)
from spark_stream.loggers import logger_of
from spark_stream.operating_system import keep_free_memory
from spark_stream.schema.schemas import fitted
from spark_stream.sql.filters import row_filter
from spark_stream.sql.tree import (
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    Literal,
    Not,
    Predicate,
    TextPart,
    TextSearch,
    both,
    compared_columns,
    literal_of,
    sql_of,
)
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)

_WAIT_MS: Final = 2_000
_ROWS_AT_ONCE: Final = 10_000
_BYTES_AT_ONCE: Final = 4 << 20


class RangeReader(Struct, frozen=True):
    """The reader of ranges, which Spark sends to the workers. ``schema`` is Spark's projection."""

    options: SourceOptions
    schema: StructType

    @with_spark_errors
    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Read the task's ranges, in batches that have exactly Spark's schema.

        The rows and their order depend on the task only: one range after the other, each in the
        order of its offsets. Spark computes a task again if it needs the result once more, and
        expects the same rows (decision 185). The sizes of the batches may differ.

        Raises:
            DataLoss: Records of the range are lost, and ``failOnDataLoss`` is set.
            NotVisibleYet: A transaction that was open when the batch was planned is still open.
            SchemaMismatch: A column has another type than the query was planned with.
        """
        keep_free_memory()
        schema = to_arrow(self.schema)
        if self.options.lake == ONLY:
            for each in task:
                yield from self._read_table(each, schema)
        elif len(task) == 1:
            yield from self._read(task[0], schema)
        else:
            yield from join_small_batches(self._read_many(task, schema))

    def _read_many(self, task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read one range after the other, in one call to each leader as far as possible.

        If a range ends early in its call, the rest is read alone, before the next range.
        """
        sources: dict[int, Source] = {}
        views: dict[tuple[str, int], View] = {}
        for number, asked in enumerate(task):
            try:
                sources[number] = self._source(asked, schema, views)
            except IsologError:  # it is raised again by the separate call for the range
                logger.debug("%s/%d is read by a separate call", asked.topic, asked.partition)
        wanted = [WantedRange(source, task[n].start, task[n].end) for n, source in sources.items()]
        with closing(read_together(wanted)) as together:
            for number, asked in enumerate(task):
                position = asked.start
                for fetched in next(together) if number in sources else ():
                    position = fetched.next
                    if fetched.batch.num_rows:
                        yield fitted(fetched.batch, schema)
                yield from self._read(replace(asked, start=position), schema)

    def _read_table(self, asked: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read a range from its table alone."""
        position = asked.start
        try:
            source = self._source(asked, schema, {})
            for fetched in fetched_from_table(source, asked.start, asked.end) or ():
                position = fetched.next
                if fetched.batch.num_rows:
                    yield fitted(fetched.batch, schema)
        except UnknownTopic as error:
            gone = lost_with_topic(asked, position, self._present_id(asked.topic))
            self._report_loss(self._loss(asked, gone), error)
            return
        if position < asked.end:
            message = (
                f"{asked.topic}/{asked.partition}: no table has offsets {position} to"
                f" {asked.end - 1}"
            )
            loss = self._loss(asked, message)
            self._report_loss(loss, loss)

    def _read(self, asked: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        position = asked.start
        while position < asked.end:
            try:
                source = self._source(asked, schema, {})
                for fetched in _visible(source, position, asked.end):
                    position = fetched.next
                    if fetched.batch.num_rows:
                        yield fitted(fetched.batch, schema)
            except OffsetEvicted as error:
                first = int(error.details["log_start_offset"])
                removed = removed_by_retention(asked, position, first)
                self._report_loss(self._loss(asked, removed), error)
                position = first
            except UnknownTopic as error:
                gone = lost_with_topic(asked, position, self._present_id(asked.topic))
                self._report_loss(self._loss(asked, gone), error)
                return
            except DataLoss as error:
                self._report_loss(error, error)
                asked = replace(asked, end=int(error.details.get("left", position)))

    def _source(
        self, asked: Range, schema: pa.Schema, views: dict[tuple[str, int], View]
    ) -> Source:
        """Return the source of the range. ``views``: made before, by topic and version."""
        log_session = session(self.options.place)
        topic = log_session.topics.known(asked.topic)
        if topic.id != asked.topic_id:  # this process remembers an earlier topic of the name
            topic = log_session.topics.describe(asked.topic)
        if topic.id != asked.topic_id:
            raise UnknownTopic(f"topic {asked.topic!r} was created again", topic=asked.topic)
        version = topic.id, topic.schema_version
        if version not in views:
            views[version] = self._view(topic, schema)
        view = views[version]
        isolation = self.options.isolation
        if isolation is Isolation.READ_ATOMIC:
            isolation = Isolation.READ_COMMITTED  # the range is atomic: it ends at a cut
        return Source(
            log_session.topics.router,
            view,
            asked.topic_id,
            asked.partition,
            isolation,
            asked.lineage,
            self.options.mapped_reads,
            None if self.options.lake == NEVER else log_session.tables,
        )

    def _view(self, topic: TopicDescription, schema: pa.Schema) -> View:
        """Return the query's columns, in the types that the topic had when it was planned."""
        try:
            return planned_view(topic, schema, self.options.filter)
        except (SchemaMismatch, InvalidFilter):
            now = session(self.options.place).topics.describe(topic.name)
            if now.id != topic.id or now.schema_version == topic.schema_version:
                raise
        # The topic was altered before the query was planned; this process has the older schema.
        return planned_view(now, schema, self.options.filter)

    def _present_id(self, topic: str) -> str | None:
        """Return the id of the topic with this name, or None if there is none."""
        try:
            return session(self.options.place).topics.describe(topic).id
        except UnknownTopic:
            return None

    def _loss(self, asked: Range, message: str) -> DataLoss:
        return DataLoss(message, topic=asked.topic, partition=asked.partition)

    def _report_loss(self, error: DataLoss, cause: Exception) -> None:
        if self.options.fail_on_data_loss:
            raise error from (None if cause is error else cause)
        logger.warning(
            "%s; continuing with the remaining records (failOnDataLoss is false)", error.message
        )


def _visible(source: Source, start: int, end: int) -> Iterator[Fetched]:
    """Read a range, up to its end.

    The end of a range may hold only records of aborted transactions. Then the leader is asked once
    more for the next offset. It may also lie above the bound of the isolation level, if the batch
    was planned under another level. Then this waits for the bound.

    Raises:
        NotVisibleYet: The bound did not move within the source's timeout for brokers.
        DataLoss: The log ends below the end of the range, at ``left``.
    """
    position, wait_ms = start, 0
    give_up = time.monotonic() + source.router.timeout_s
    while position < end:
        before, bounds = position, None
        for fetched in read_range(source, position, end, wait_ms=wait_ms):
            position, bounds = fetched.next, fetched.bounds or bounds
            yield fetched
        if position > before:
            give_up = time.monotonic() + source.router.timeout_s
        elif bounds is not None:
            _check_there(source, position, end, bounds)
        if position == before and time.monotonic() > give_up:
            raise _not_visible(
                source, position, end, bounds
            )  # None: the leader has not computed them
        wait_ms = max(1, min(_WAIT_MS, int(1000 * (give_up - time.monotonic()))))


def _check_there(source: Source, position: int, end: int, bounds: Bounds) -> None:
    """Raise DataLoss if the log ends below the range's end."""
    topic, number, left = source.view.topic, source.partition, bounds.log_end_offset
    if left < end:
        raise DataLoss(
            f"{topic}/{number}: offsets {max(position, left)} to {end - 1} are lost: the log ends"
            f" at {left}",
            topic=topic,
            partition=number,
            left=max(position, left),
        )


def _not_visible(source: Source, position: int, end: int, bounds: Bounds | None) -> NotVisibleYet:
    topic, number = source.view.topic, source.partition
    hint = None
    if bounds is None:
        why = "the partition's new leader has not computed yet which records are committed"
        hint = "No record is lost. Check that the partition's in-sync replicas run, and restart."
    elif bounds.last_stable_offset < bounds.high_watermark:
        why = f"a transaction that began at offset {bounds.last_stable_offset} is still open"
    else:
        why = "not all in-sync replicas have them"
        hint = (
            "No record is lost. Check why a follower lags (`isolog cluster status`), and restart."
        )
    return NotVisibleYet(
        f"{topic}/{number}: offsets {position} to {end - 1} of this batch are in the log, but not"
        f" visible yet: {why}",
        hint=hint,
        topic=topic,
        partition=number,
        offset=position,
    )


def join_small_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join neighbouring small batches: each batch has a cost in Spark, whatever its size."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        nbytes += batch.get_total_buffer_size()
        if rows >= _ROWS_AT_ONCE or nbytes >= _BYTES_AT_ONCE:
            yield pa.concat_batches(held)
            held, rows, nbytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)


class IsologReader(WorkerPickled, DataSourceReader):
    """The batch source: the range is fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._planner = Planner.of(options)
        self._ranges = RangeReader(self._planner.options, schema)
        self._planner.check_projection(schema)

    @property
    def schema(self) -> StructType:
        """The query's columns."""
        return self._ranges.schema

    def keep_only(self, filter: str | None) -> None:
        """Read only the records for which this filter, and the query's filter, are true."""
        self._ranges = replace(self._ranges, options=self._ranges.options.filtered(filter))

    def check_filter(self, text: str) -> None:
        """Raise InvalidFilter if the filter does not fit the columns of a topic."""
        for name, topic in self._planner.describe().items():
            row_filter(text, name, topic.schema)

    @with_spark_errors
    def partitions(self) -> list[InputPartition]:
        options, losses = self._planner.options, self._planner.losses
        start = self._start()
        end: Offsets = resolve(self._planner, options.ending, LATEST).offsets
        check_order(options, start, end)
        while True:
            now = self._planner.latest(start, end, reading=ranges(start, end))
            losses.check_topics(start, now)
            start, end = losses.kept(start, now), losses.kept(end, now)
            try:
                visible = self._visible(start, end, now)
            except UnknownTopic:  # one was deleted in between: look again
                continue
            break
        new = visible.keys() - start.keys()  # of a pattern, since the start was pinned
        readable = losses.readable(ranges(start, visible), now, new)
        return [InputPartition(each) for each in tasks(readable, options.splitting)]

    def _visible(self, start: Offsets, end: Offsets, now: LogState) -> Offsets:
        """Return the present end of the read. Raise UnknownTopic for a topic that was deleted."""
        ends = {
            name: topic.moved(
                {
                    number: min(offset, now.latest[name].offsets[number])
                    for number, offset in topic.offsets.items()
                    if number in now.latest[name].partitions
                }
            )
            for name, topic in end.items()
            if name in now.latest
        }
        if not self._planner.atomic or self._planner.options.ending.place == LATEST:
            return ends
        return self._planner.cut_below(start, ends, now)

    def _start(self) -> Offsets:
        def first() -> Offsets:
            found = resolve(self._planner, self._planner.options.starting, EARLIEST).offsets
            if not found:
                raise self._planner.no_topic("there are no records to read")
            return found

        name = self._planner.options.consumer
        return first() if name is None else NamedQuery(self._planner, name).pinned_start(first)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # For a query without partitions, Spark makes one without a range, or None (Spark 4.0).
        task = None if partition is None else partition.value
        return iter(()) if task is None else self._ranges.read(task)


class PushingReader(IsologReader):
    """A batch source that lets the leader apply Spark's filters."""

    @with_spark_errors
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Keep the filters that the leader can apply. Return the others."""
        texts = [self._text_of(each) for each in filters]
        self.keep_only(both(*texts))
        return [each for each, text in zip(filters, texts, strict=True) if text is None]

    def _text_of(self, pushed: Any) -> str | None:
        """Return the filter as SQL that fits all topics, or None if Spark has to apply it."""
        tree = _tree_of(pushed)
        if tree is None or any(
            text_rule(self.schema, column.path) for column in compared_columns(tree)
        ):
            return None
        text = sql_of(tree)
        try:
            self.check_filter(text)
        except InvalidFilter:
            return None
        return text


def _tree_of(pushed: Any) -> Predicate | None:
    """Return the filter as a tree, or None if no tree expresses it."""
    name = type(pushed).__name__
    if name == "Not":
        part = _tree_of(pushed.child)
        return None if part is None else Not(part)
    if name == "IsNull":
        return IsNull(Column(pushed.attribute))
    if name == "IsNotNull":
        return Not(IsNull(Column(pushed.attribute)))
    if name == "In":
        items = [_literal(value) for value in pushed.value]
        known = tuple(each for each in items if each is not None)
        return In(Column(pushed.attribute), known) if known and len(known) == len(items) else None
    if name not in _OPERATORS or (value := _literal(pushed.value)) is None:
        return None
    operator, column = _OPERATORS[name], Column(pushed.attribute)
    if isinstance(operator, TextPart):
        return TextSearch(column, operator, value)
    sides = (value, column) if name in _MIRRORED else (column, value)
    return Compare(operator, *sides)


def _literal(value: Any) -> Literal | None:
    """Return the value as a literal, or None if filters lack such values, or it may be rounded.

    PySpark multiplies decimals in the context of the process, which rounds to its precision (28). A
    value with that many digits may be rounded, and Spark does not apply a filter that the reader
    took.
    """
    if isinstance(value, Decimal) and len(value.as_tuple().digits) >= getcontext().prec:
        return None
    return literal_of(value)


_OPERATORS: Final[Mapping[str, Comparison | TextPart]] = {
    "EqualTo": Comparison.EQUAL,
    "EqualNullSafe": Comparison.SAME,
    "LessThan": Comparison.LESS,
    "LessThanOrEqual": Comparison.LESS_OR_EQUAL,
    "GreaterThan": Comparison.LESS,
    "GreaterThanOrEqual": Comparison.LESS_OR_EQUAL,
    "StringStartsWith": TextPart.START,
    "StringEndsWith": TextPart.END,
    "StringContains": TextPart.ANYWHERE,
}

_MIRRORED: Final = ("GreaterThan", "GreaterThanOrEqual")
"""Filters whose column is on the right side of the operator."""
