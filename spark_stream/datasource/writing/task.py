"""How a task writes its rows: in a worker, batch after Arrow batch.

A task coalesces Spark's batches, so the log gets few large ones, and sends them while the next
come. Rows with keys go where their keys say; others go to the partitions in turn, batch by batch,
beginning with a different partition in every task and micro-batch.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_stream.client.writing.keys import has_keys
from spark_stream.client.writing.producer import Producer
from spark_stream.datasource.options import SinkOptions
from spark_stream.datasource.options.checking import TOPIC_SETTING
from spark_stream.datasource.spark.session import (
    Grant,
    Session,
    located,
    session,
    session_for_aborts,
)
from spark_stream.datasource.spark.types import check_collations, to_arrow
from spark_stream.datasource.values.content import Measure, measured, summed
from spark_stream.datasource.writing.belonging import check_checkpoint
from spark_stream.datasource.writing.branches import TaskBranch, WrittenRows, drop, open_branch
from spark_stream.datasource.writing.driver import NO_PLAN, Plan
from spark_stream.datasource.writing.identity import BATCH, BranchIdentity, of_task
from spark_stream.datasource.writing.renewal import TIMEOUT_MS, KeptOpen
from spark_stream.datasource.writing.routing import (
    by_topic,
    check_fits,
    check_routing,
    routed,
    topic_schema,
)
from spark_stream.errors import (
    InvalidAssignment,
    InvalidConfig,
    InvalidOption,
    IsologError,
    SchemaMismatch,
    TopicExists,
    UnknownTopic,
    UnsupportedType,
)
from spark_stream.schema.keys import DEFAULT_KEY, PARTITION_BY, key_columns
from spark_stream.wire.allocator import keep_free_memory
from spark_stream.wire.messages import TopicDescription
from spark_stream.wire.transaction_messages import Branch

logger = logging.getLogger(__name__)

_COALESCED_BYTES: Final = 3 << 19
"""Spark's batches are joined up to this size, which a broker takes in best."""
_KEYED_FACTOR: Final = 2
"""The size is multiplied by this for rows with keys: they are spread over partitions afterwards."""


@dataclass
class Wrote(WriterCommitMessage):
    """What a task wrote, and to which log.

    ``written`` is None without transactions, where nothing is left to a commit.
    """

    cluster_id: str | None = None
    written: WrittenRows | None = None


class Seen(Struct, frozen=True):
    """What a topic was when it was planned: a process that knows the same need not ask again."""

    topic_id: str
    schema_version: int
    partitions: int
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, known: TopicDescription) -> Seen:
        """Take what is needed of a description."""
        return cls(known.id, known.schema_version, len(known.partitions), known.partition_by)


class TaskWriter(Struct, frozen=True):
    """What travels to the workers and writes there. ``schema`` is the DataFrame's.

    ``identity`` is a batch write's; only its tasks know a micro-batch's. ``plan`` says
    which driver planned the batch. ``seen``: the topic of the options, as the driver found it.
    """

    options: SinkOptions
    schema: StructType
    identity: BranchIdentity | None = None
    plan: Plan = NO_PLAN
    timeout_ms: int = TIMEOUT_MS
    seen: Seen | None = None

    def prepare(self, *, lasting: bool = False) -> TaskWriter:
        """Do all checks that need no row; return the writer with the log that is there now.

        Makes a missing log and a missing topic if asked to. ``lasting``: for a streaming query.

        Raises:
            UnknownLog: there is no log, and none is to be made.
            WrongCluster: the query's checkpoint belongs to another log.
            UnknownTopic, SchemaMismatch, UnsupportedType: naming the topic, or the column.
        """
        arrow = to_arrow(self.schema)
        check_collations(self.schema)
        check_routing(arrow, self.options.topic)
        place = located(
            self.options.place,
            _grants(self.options),
            create=self.options.create_topic,
            lasting=lasting,
        )
        check_checkpoint(self.options.checkpoint, place)
        ready = replace(self, options=replace(self.options, place=place))
        if ready.options.topic is None:
            return ready
        known = ready._topic(ready.options.topic, arrow)
        tell_what_stays(known, ready.options)
        return replace(ready, seen=Seen.of(known))

    def write(self, batches: Iterator[pa.RecordBatch]) -> Wrote:
        """Write a task's rows. Return when all are acknowledged; raise if one was not.

        A task without rows opens no branch, and one whose batch is committed writes nothing. A task
        that fails leaves nothing open.
        """
        keep_free_memory()
        log_session = session(self.options.place)
        if not self.options.transactional:
            self._append_all(log_session, None, coalesced(batches, keyed=self._keyed))
            return Wrote(log_session.cluster_id)
        identity = self.identity or of_task(self.options.sink_id, TaskContext.get())
        with KeptOpen(
            log_session.transactions, identity, self.timeout_ms
        ):  # before the first row comes
            rows = coalesced(batches, keyed=self._keyed)
            first = next(rows, None)
            if first is None:
                return Wrote(log_session.cluster_id, WrittenRows(identity))
            rows = itertools.chain([first], rows)
            return Wrote(log_session.cluster_id, self._in_branch(log_session, identity, rows))

    @property
    def _keyed(self) -> bool:
        """Whether rows may have keys, as far as is known before the first row comes."""
        topics = DEFAULT_KEY if self.seen is None else self.seen.partition_by
        names = self.schema.names
        return any(name in names for name in _spelled(self.options.partition_by, names) or topics)

    def _in_branch(
        self, log_session: Session, identity: BranchIdentity, rows: Iterator[pa.RecordBatch]
    ) -> WrittenRows:
        branch = open_branch(log_session.transactions, identity, self.plan, self.timeout_ms)
        if branch.committed:  # a replay: its rows are measured and not written
            return WrittenRows(identity, self._content(rows), branch)
        try:
            content = self._append_all(log_session, branch, rows, measuring=identity.remembered)
        except BaseException:  # a task that Spark kills ends in this way, too
            self._drop(branch)
            raise
        return WrittenRows(identity, content, branch)

    def _drop(self, branch: TaskBranch) -> None:
        try:
            drop(session_for_aborts(self.options.place).transactions, branch)
        except IsologError as error:
            logger.warning("a failed task's branch was not aborted, but will time out: %s", error)

    def _content(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Measure]:
        return summed(
            {topic: measured(rows)}
            for batch in batches
            for topic, rows in by_topic(batch, self.options.topic)
        )

    def _append_all(
        self,
        log_session: Session,
        under: Branch | None,
        batches: Iterator[pa.RecordBatch],
        *,
        measuring: bool = False,
    ) -> dict[str, Measure]:
        """Append all batches. Return their measure by topic, if one is asked for."""
        arrow = to_arrow(self.schema)
        known: dict[str, TopicDescription] = {}
        content: list[dict[str, Measure]] = []
        isolation = self.options.isolation
        timeout_ms = max(1, round(log_session.connection.timeout_s * 1000))
        with Producer(
            log_session.connection,
            log_session.topics,
            isolation=isolation,
            timeout_ms=timeout_ms,
            branch=under,
        ) as producer:
            for turn, batch in enumerate(batches, _first_turn()):
                for topic, rows in by_topic(batch, self.options.topic):
                    if topic not in known:
                        known[topic] = self._topic(topic, arrow)
                    self._append(producer, known[topic], rows, turn)
                    if measuring:
                        content.append({topic: measured(rows)})
        return summed(content)

    def _append(
        self, producer: Producer, known: TopicDescription, rows: pa.RecordBatch, turn: int
    ) -> None:
        count = len(known.partitions)
        by_column = self.options.topic is None
        asked = _spelled(self.options.partition_by, known.schema.names)
        for part in routed(known.name, known.schema, rows, count, by_column=by_column):
            place = part.partition
            if place is None and not has_keys(part.batch, asked or known.partition_by):
                place = turn % count
            producer.append(known.name, part.batch, partition=place, key=asked)

    def _topic(self, name: str, arrow: pa.Schema) -> TopicDescription:
        """Return a topic that the DataFrame fits; make it if it is missing and that is allowed."""
        topics = session(self.options.place).topics
        by_column = self.options.topic is None
        try:
            known = topics.describe(name) if self.seen is None else topics.known(name)
            if self.seen not in (None, Seen.of(known)):  # it may have been made anew, or altered
                known = topics.describe(name)
            self._check_settings(known)
        except UnknownTopic as error:
            if not self.options.create_topic:
                raise UnknownTopic(
                    error.message,
                    hint=f"{error.hint[:-1]}, and so does the option createTopic=true.",
                    **error.details,
                ) from None
            schema = topic_schema(arrow, by_column=by_column)
            config = dict(self.options.topic_config)
            if self.options.partition_by:
                config[PARTITION_BY] = ",".join(_spelled(self.options.partition_by, schema.names))
            try:
                known = topics.create(
                    name,
                    self.options.partitions or 1,
                    self.options.replication_factor,
                    schema,
                    config,
                )
                if known.warning is not None:
                    logger.warning("%s (option replicationFactor)", known.warning)
            except (InvalidConfig, InvalidAssignment) as error:
                raise _of_option(error) from None
            except TopicExists:  # another task was faster
                known = topics.describe(name)
        check_fits(arrow, known, by_column=by_column)
        try:
            asked = _spelled(self.options.partition_by, known.schema.names)
            key_columns(known.schema, known.partition_by, asked)
        except (SchemaMismatch, UnsupportedType) as error:
            raise InvalidOption(
                f"option 'partitionBy': topic {name!r}: {error.message}",
                hint=error.hint,
                **error.details | {"option": "partitionBy", "topic": name},
            ) from None
        return known

    def _check_settings(self, known: TopicDescription) -> None:
        """Refuse unknown settings; those of a topic that exists are not changed."""
        for name, _ in self.options.topic_config:
            if name not in known.config:
                near = difflib.get_close_matches(name, known.config, n=1)
                guess = f"did you mean 'topic.{near[0]}'?" if near else "no topic has it"
                option = f"topic.{name}"
                raise InvalidOption(f"unknown option {option!r}; {guess}", option=option)


def _spelled(asked: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names as the columns have them: to Spark, names in another case are the same."""
    found: dict[str, list[str]] = {}
    for column in columns:
        found.setdefault(column.lower(), []).append(column)
    return tuple(
        there[0] if name not in columns and len(there := found.get(name.lower(), [])) == 1 else name
        for name in asked
    )


def _grants(options: SinkOptions) -> list[Grant]:
    """Return what a query's tasks and its commits need to be allowed."""
    topic = f"topic:{options.topic or '*'}"
    grants = [("write", topic)]
    if options.create_topic:
        grants.append(("create", topic))
    if options.transactional:
        grants.append(("write", "transaction:*"))
    return grants


def _of_option(error: InvalidConfig | InvalidAssignment) -> InvalidOption:
    """Return the error about a new topic as one that names the option which asked for it."""
    setting = error.details.get("setting")
    option = f"{TOPIC_SETTING}{setting}"
    if isinstance(error, InvalidAssignment):
        option = "replicationFactor"
    elif setting == PARTITION_BY:
        option = "partitionBy"
    return InvalidOption(f"option {option!r}: {error.message}", option=option, hint=error.hint)


def tell_what_stays(known: TopicDescription, options: SinkOptions) -> None:
    """Warn once in a process that an existing topic keeps settings that the options set."""
    asked = {
        f"{TOPIC_SETTING}{name}": (known.config[name], wanted)
        for name, wanted in options.topic_config
    }
    if options.partitions is not None:
        asked["partitions"] = (str(len(known.partitions)), str(options.partitions))
    for option, (present, wanted) in asked.items():
        if present != wanted:
            _warn_once(
                f"topic {known.name!r} is there already and keeps {present} for {option}={wanted};"
                " isolog topic alter changes it"
            )


@lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def coalesced(
    batches: Iterator[pa.RecordBatch], *, keyed: bool = False
) -> Iterator[pa.RecordBatch]:
    """Join batches to fewer, larger ones: what the log stores, and every reader reads, in one go.

    ``keyed``: their rows are shared out over partitions afterwards.
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
    """Return where a task's turn begins: small micro-batches must not all go to partition 0."""
    context = TaskContext.get()
    if context is None:
        return 0
    batch_id = context.getLocalProperty(BATCH)
    return context.partitionId() + (int(batch_id) if batch_id else context.stageId())
