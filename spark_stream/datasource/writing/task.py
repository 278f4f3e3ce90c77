"""The writing of a task's rows: in a worker, by Arrow batches.

A task coalesces Spark's batches, so the log gets few large ones, and sends them while the next
arrive. Rows with keys go to the partitions of their keys. Other rows go to the partitions in turn,
batch by batch, beginning with a different partition in every task and micro-batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_stream.client.topics import checked_topic
from spark_stream.client.writing.partitioner import has_keys
from spark_stream.client.writing.producer import Producer
from spark_stream.datasource.options import SinkOptions
from spark_stream.datasource.spark.place import Place
from spark_stream.datasource.spark.session import (
    Grant,
    Session,
    locate,
    recall,
    session,
    session_for_aborts,
    with_brief_timeout,
)
from spark_stream.datasource.spark.types import check_collations, to_arrow
from spark_stream.datasource.values.content import Measure, measure, sum_measures
from spark_stream.datasource.values.earlier_content import measure_by_column
from spark_stream.datasource.writing.bad_rows import (
    BadRows,
    DeadLetterWriter,
    LetterOrigin,
    check_topic,
    split_rows,
)
from spark_stream.datasource.writing.identity import (
    BATCH,
    NO_PLAN,
    QUERY,
    BranchIdentity,
    Plan,
    check_checkpoint,
    noted_log,
    task_identity,
)
from spark_stream.datasource.writing.routing import (
    PlannedTopic,
    Targets,
    by_topic,
    check_routing,
    find_topic,
    reason_of,
    route,
    spell,
    warn_of_kept_settings,
)
from spark_stream.datasource.writing.transactions import (
    TaskBranch,
    TransactionRenewal,
    WrittenRows,
    drop,
    open_branch,
)
from spark_stream.errors import InvalidRecord, InvalidTopic, IsologError
from spark_stream.loggers import logger_of
from spark_stream.operating_system import keep_free_memory
from spark_stream.schema.keys import DEFAULT_KEY, path_of
from spark_stream.wire.topic_messages import TopicDescription
from spark_stream.wire.transaction_messages import Branch

logger = logger_of(__name__)

_COALESCED_BYTES: Final = 3 << 19
"""Spark's batches are joined up to this size, which a broker handles best."""
_KEYED_FACTOR: Final = 2
"""The size is multiplied by this for rows with keys: they are spread over partitions afterwards."""


@dataclass
class TaskResult(WriterCommitMessage):
    """The commit message of a task: its rows, and their log.

    ``written`` is None without transactions, which have no commit. ``dead_letters``: the number of
    rows that did not fit their topic, by reason.
    """

    cluster_id: str | None = None
    written: WrittenRows | None = None
    dead_letters: Mapping[str, int] = field(default_factory=dict)


class TaskWriter(Struct, frozen=True):
    """The writer that Spark sends to the workers. ``schema`` is the DataFrame's.

    ``identity`` is that of a batch write. Only tasks have the identity of a micro-batch. ``plan``:
    the driver that planned the batch. ``seen``: the topic of the options, as the driver found it.
    """

    options: SinkOptions
    schema: StructType
    identity: BranchIdentity | None = None
    plan: Plan = NO_PLAN
    seen: PlannedTopic | None = None

    def prepare(self, *, lasting: bool = False) -> TaskWriter:
        """Make all checks that need no row. Return the writer with the present log.

        Creates a missing log and a missing topic if the options say so. ``lasting``: for a
        streaming query. Spark does not interrupt its planner when it stops a query. So if a query's
        log does not answer within a few seconds, the tasks wait for it and repeat the checks. A
        query with a credential waits here if its tasks need a new token.

        Raises:
            UnknownLog: There is no log, and the options do not create one.
            WrongCluster: The query's checkpoint belongs to another log.
            UnknownTopic, SchemaMismatch, UnsupportedType: naming the topic, or the column.
            InvalidOption: The topic of dead letters does not take them.
        """
        arrow = to_arrow(self.schema)
        check_collations(self.schema)
        check_routing(arrow, self.options.topic)
        place = self.options.place
        if not lasting:
            return self._checked(arrow, lasting=False)
        try:
            checked = self._at(with_brief_timeout(place))._checked(arrow, lasting=True)
        except IsologError as error:
            if not error.retriable:
                raise
            noted = noted_log(self.options.checkpoint)
            known = recall(with_brief_timeout(place), _grants(self.options), noted)
            if known is None:  # the tasks need the log's id, so that they find no other log
                return self._checked(arrow, lasting=True)
            check_checkpoint(self.options.checkpoint, known)
            logger.warning("the log does not answer, so the batch's tasks wait for it: %s", error)
            checked = self._at(known)
        return checked._at(replace(checked.options.place, timeout_s=place.timeout_s))

    def _at(self, place: Place) -> TaskWriter:
        return replace(self, options=replace(self.options, place=place))

    def _checked(self, arrow: pa.Schema, *, lasting: bool) -> TaskWriter:
        place = locate(
            self.options.place,
            _grants(self.options),
            create=self.options.create_topic,
            lasting=lasting,
        )
        check_checkpoint(self.options.checkpoint, place)
        if self.options.dead_letter_topic is not None:
            check_topic(
                session(place).topics,
                self.options.dead_letter_topic,
                create=self.options.create_topic,
                replication_factor=self.options.replication_factor,
            )
        ready = self._at(place)
        if ready.options.topic is None:
            return ready
        known = find_topic(ready.options, ready.options.topic, arrow)
        warn_of_kept_settings(known, ready.options)
        return replace(ready, seen=PlannedTopic.of(known))

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write a task's rows. Return when all are acknowledged, or raise if one was not.

        A task without rows opens no branch. A task whose batch is committed already writes no rows.
        A task that fails leaves no branch open.
        """
        keep_free_memory()
        log_session = session(self.options.place)
        if not self.options.transactional:
            rows = coalesce(batches, keyed=self._keyed)
            _, dead_letters = self._append_all(log_session, None, rows, self._origin(None))
            return TaskResult(log_session.cluster_id, dead_letters=dead_letters)
        identity = self.identity or self._of_task(TaskContext.get())
        timeout_ms = self.options.transaction_timeout_ms
        # The renewals begin before the first row arrives.
        with TransactionRenewal(log_session.connection, identity, timeout_ms) as kept:
            rows = coalesce(batches, keyed=self._keyed)
            first = next(rows, None)
            if first is None:
                return TaskResult(log_session.cluster_id, WrittenRows(identity))
            rows = itertools.chain([first], rows)
            return self._in_branch(log_session, identity, rows, kept)

    @property
    def _keyed(self) -> bool:
        """Whether rows may have keys. It is used before the first row arrives."""
        topics = DEFAULT_KEY if self.seen is None else self.seen.partition_by
        arrow = to_arrow(self.schema)
        names = spell(self.options.partition_by or (), arrow) or topics
        return any(path_of(arrow, name) is not None for name in names)

    def _in_branch(
        self,
        log_session: Session,
        identity: BranchIdentity,
        rows: Iterator[pa.RecordBatch],
        kept: TransactionRenewal,
    ) -> TaskResult:
        timeout_ms = self.options.transaction_timeout_ms
        branch = open_branch(log_session.connection, identity, self.plan, timeout_ms)
        if branch.committed:  # a replay: its rows are measured and not written
            content, earlier = self._content(rows)
            written = WrittenRows(identity, content, branch, earlier)
            return TaskResult(log_session.cluster_id, written)
        try:
            content, dead_letters = self._append_all(
                log_session, branch, rows, self._origin(identity), measuring=identity.remembered
            )
        except BaseException:  # a task that Spark kills ends in this way, too
            self._drop(branch)
            raise
        kept.wrote(branch.transaction)
        written = WrittenRows(identity, content, branch)
        return TaskResult(log_session.cluster_id, written, dead_letters)

    def _of_task(self, context: TaskContext | None) -> BranchIdentity:
        return task_identity(self.options.sink_id, context, self.options.query_name)

    def _origin(self, identity: BranchIdentity | None) -> LetterOrigin:
        """Return the origin of this task's dead letters."""
        context = TaskContext.get()
        task = None if context is None else context.partitionId()
        if identity is None and context is not None and context.getLocalProperty(QUERY):
            identity = self._of_task(context)
        if identity is None:
            return LetterOrigin(task=task)
        batch = identity.batch if identity.remembered else None
        return LetterOrigin(identity.transactional_id, batch, task)

    def _drop(self, branch: TaskBranch) -> None:
        try:
            drop(session_for_aborts(self.options.place).connection, branch)
        except IsologError as error:
            logger.warning("a failed task's branch was not aborted, but will time out: %s", error)

    def _content(
        self, batches: Iterator[pa.RecordBatch]
    ) -> tuple[dict[str, Measure], dict[str, Measure]]:
        """Return the rows' measures by topic, and those that the previous release recorded."""
        content: list[dict[str, Measure]] = []
        earlier: list[dict[str, Measure]] = []
        for batch in batches:
            for topic, rows in by_topic(batch, self.options.topic):
                name = self._counted_as(topic)
                content.append({name: measure(rows)})
                earlier.append({name: measure_by_column(rows)})
        return sum_measures(content), sum_measures(earlier)

    def _counted_as(self, topic: str | None) -> str:
        """Return the topic in whose measure the rows count: their target, for bad rows too.

        So a replay is recognised without finding bad rows again, for a topic that may have been
        altered since. Rows without a valid topic count in the topic of dead letters.
        """
        dead_letters = self.options.dead_letter_topic
        if topic is None:
            if dead_letters is None:
                raise InvalidRecord("a row has no topic: its column 'topic' is null")
            return dead_letters
        try:
            return checked_topic(topic)
        except InvalidTopic:
            if dead_letters is None:
                raise
            return dead_letters

    def _append_all(
        self,
        log_session: Session,
        under: Branch | None,
        batches: Iterator[pa.RecordBatch],
        origin: LetterOrigin,
        *,
        measuring: bool = False,
    ) -> tuple[dict[str, Measure], Counter[str]]:
        """Append all batches.

        Return their measure by topic, if ``measuring``, and the number of dead letters by reason.
        """
        targets = Targets(self.options, to_arrow(self.schema), self.seen)
        content: list[dict[str, Measure]] = []
        dead_letters = self.options.dead_letter_topic
        isolation = self.options.isolation
        timeout_ms = max(1, round(log_session.connection.timeout_s * 1000))
        with Producer(
            log_session.connection,
            log_session.topics,
            isolation=isolation,
            timeout_ms=timeout_ms,
            branch=under,
        ) as producer:
            letters = (
                None
                if dead_letters is None
                else DeadLetterWriter(producer, log_session.topics, dead_letters, origin)
            )
            for turn, batch in enumerate(batches, _first_turn()):
                for topic, rows in by_topic(batch, self.options.topic):
                    if measuring:
                        content.append({self._counted_as(topic): measure(rows)})
                    for known, good in self._sorted(targets.find(topic), topic, rows, letters):
                        self._append(producer, known, good, turn)
        return sum_measures(content), Counter() if letters is None else letters.counts

    def _sorted(
        self,
        found: TopicDescription | IsologError,
        topic: str | None,
        rows: pa.RecordBatch,
        letters: DeadLetterWriter | None,
    ) -> Iterator[tuple[TopicDescription, pa.RecordBatch]]:
        """Yield the rows that fit their topic. Write a letter for each other row."""
        by_column = self.options.topic is None
        if isinstance(found, IsologError):
            # Rows that name their topic may name a wrong one; the option's is the whole query's.
            if letters is None or not by_column:
                raise found
            letters.write(BadRows(topic, reason_of(found), found.message, rows))
            return
        if letters is not None:
            rows, bad = split_rows(rows, found, by_column=by_column)
            for each in bad:
                letters.write(each)
        if rows.num_rows:
            yield found, rows

    def _append(
        self, producer: Producer, known: TopicDescription, rows: pa.RecordBatch, turn: int
    ) -> None:
        count = len(known.partitions)
        by_column = self.options.topic is None
        asked = spell(self.options.partition_by or (), known.schema)
        for part in route(known.name, known.schema, rows, count, by_column=by_column):
            place = part.partition
            if place is None and not has_keys(part.batch, asked or known.partition_by):
                place = turn % count
            producer.append(known.name, part.batch, partition=place, key=asked)


def _grants(options: SinkOptions) -> list[Grant]:
    """Return the permissions that a query's tasks and its commits need."""
    topic = f"topic:{options.topic or '*'}"
    grants = [("write", topic)]
    if options.create_topic:
        grants.append(("create", topic))
    if options.topic is not None and options.dead_letter_topic is not None:
        grants.append(("write", f"topic:{options.dead_letter_topic}"))
    if options.transactional:
        grants.append(("write", "transaction:*"))
    return grants


def coalesce(batches: Iterator[pa.RecordBatch], *, keyed: bool = False) -> Iterator[pa.RecordBatch]:
    """Join batches to fewer, larger ones, which the log stores and every reader reads whole.

    ``keyed``: their rows are distributed over partitions afterwards.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _COALESCED_BYTES * (_KEYED_FACTOR if keyed else 1):
            yield _joined(held)
            held, size = [], 0
    if size or any(batch.num_rows for batch in held):
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _first_turn() -> int:
    """Return the first turn of a task: small micro-batches must not all go to partition 0."""
    context = TaskContext.get()
    if context is None:
        return 0
    batch_id = context.getLocalProperty(BATCH)
    return context.partitionId() + (int(batch_id) if batch_id else context.stageId())
