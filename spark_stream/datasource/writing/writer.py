"""The batch and the streaming sink, as Spark calls them.

With ``transactional=true`` a micro-batch, or a batch write, is one transaction over all its topics:
tasks write under branches of it (``task``), and the driver decides (``transactions``). With
``false`` there is no commit: rows are visible as soon as a task has written them, and a retry of a
task writes them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_stream.datasource.options import SinkOptions
from spark_stream.datasource.spark.pickling import WorkerPickled
from spark_stream.datasource.spark.releases import DataSourceStreamArrowWriter
from spark_stream.datasource.spark.session import (
    Session,
    check_one_log,
    session,
    session_for_aborts,
)
from spark_stream.datasource.spark.workers import COMMITS, is_worker, with_spark_errors
from spark_stream.datasource.writing import transactions as branches
from spark_stream.datasource.writing.identity import (
    BranchIdentity,
    Plan,
    batch_identity,
    job_identity,
    plan_of,
)
from spark_stream.datasource.writing.task import TaskResult, TaskWriter
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of

logger = logger_of(__name__)


class IsologWriter(WorkerPickled, DataSourceArrowWriter):
    """The batch sink. Spark commits with the writer that its tasks have copies of."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        identity = _identity(options) if options.transactional else None
        plan = Plan() if identity is None else Plan(identity.instance)
        self._task = TaskWriter(options, schema, identity, plan).prepare()

    @with_spark_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @with_spark_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        identity = self._task.identity
        _commit(self._task, messages, 0 if identity is None else identity.batch)

    @with_spark_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        identity, log_session = self._task.identity, _reached(self._task)
        if log_session is not None and identity is not None:
            branches.stop(log_session.connection, self._task.plan, identity.batch)


class IsologStreamWriter(WorkerPickled, DataSourceStreamArrowWriter):
    """The streaming sink. Spark creates it again for every commit, so it has no state.

    The one that commits checks nothing beforehand: the one that planned has made all checks.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        plan = plan_of(options.checkpoint) if options.transactional else Plan()
        task = TaskWriter(options, schema, plan=plan)
        self._task = task if is_worker(COMMITS) else task.prepare(lasting=True)

    @with_spark_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @with_spark_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._task, messages, batchId)

    @with_spark_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log_session = _reached(self._task)
        if log_session is None:
            return
        connection = log_session.connection
        if branches.stop(connection, self._task.plan, batchId):  # there may be no messages
            written = _written(messages)
            branches.abort(connection, [each.branch for each in written if each.branch])


def _reached(task: TaskWriter) -> Session | None:
    """Return the session for an abort.

    Raises nothing: Spark has to show the error that caused the abort.
    """
    try:
        return session_for_aborts(task.options.place)
    except IsologError as error:
        logger.warning("cannot abort the written rows; their transaction will time out: %s", error)
        return None


def _identity(options: SinkOptions) -> BranchIdentity:
    if options.sink_id is None or options.batch_id is None:
        return job_identity(options.query_name)
    return batch_identity(options.sink_id, options.batch_id, options.query_name)


def _commit(task: TaskWriter, messages: list[WriterCommitMessage | None], batch: int) -> None:
    clusters = [each.cluster_id for each in messages if isinstance(each, TaskResult)]
    if not clusters:
        return
    place = task.options.place
    log_session = session(replace(place, cluster_id=place.cluster_id or clusters[0]))
    check_one_log(log_session, clusters)
    branches.commit(log_session.connection, _written(messages), batch, replays=task.options.replays)
    _log_dead_letters(task.options.dead_letter_topic, messages, batch)


def _log_dead_letters(
    topic: str | None, messages: list[WriterCommitMessage | None], batch: int
) -> None:
    """Log how many rows of the batch did not fit their topic."""
    counts: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, TaskResult):
            counts.update(message.dead_letters)
    if counts:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(counts.items()))
        logger.warning(
            "batch %d: dead letters in topic %r: %s rows (%s)",
            batch,
            topic,
            f"{counts.total():,}",
            reasons,
        )


def _written(messages: list[WriterCommitMessage | None]) -> list[branches.WrittenRows]:
    """Return the results of the tasks. The message of a failed task is None."""
    return [
        message.written
        for message in messages
        if isinstance(message, TaskResult) and message.written is not None
    ]
