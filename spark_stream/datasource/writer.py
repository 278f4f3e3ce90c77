"""The batch and the streaming sink, as Spark calls them.

With ``transactional=true`` a micro-batch, or a batch write, is one transaction over all its topics:
tasks write under branches of it (``task``), the driver decides (``branches``). With ``false``
nothing is left to a commit: what a task wrote is there, and a task that is tried again writes
again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_stream.datasource import branches
from spark_stream.datasource.identity import of_job
from spark_stream.datasource.options import SinkOptions
from spark_stream.datasource.plainly import plainly
from spark_stream.datasource.session import Session, check_one_log, session
from spark_stream.datasource.task import TaskWriter, Wrote
from spark_stream.errors import IsologError

logger = logging.getLogger(__name__)


class IsologWriter(DataSourceArrowWriter):
    """The batch sink. Spark commits with the very writer that its tasks have copies of."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        identity = of_job() if options.transactional else None
        self._task = TaskWriter(options, schema, identity).prepared()

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        here = session(self._task.options.place)
        check_one_log(here, _logs(messages))
        branches.commit(here.transactions, _branches(messages), batch=0)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        here = _reached(self._task)
        if here is not None and self._task.identity is not None:
            branches.abort_job(here.transactions, self._task.identity.transactional_id)


class IsologStreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink. Spark makes it anew for every commit: it keeps nothing."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = TaskWriter(options, schema).prepared()

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        here = session(self._task.options.place)
        check_one_log(here, _logs(messages))
        branches.commit(here.transactions, _branches(messages), batchId)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        here = _reached(self._task)
        if here is not None:
            branches.abort(here.transactions, _branches(messages))


def _reached(task: TaskWriter) -> Session | None:
    """The session of an abort, which raises nothing: Spark shows why there is one, and no more."""
    try:
        return session(task.options.place)
    except IsologError as error:
        logger.warning("what was written is not aborted, it times out: %s", error)
        return None


def _logs(messages: list[WriterCommitMessage | None]) -> Iterator[str | None]:
    """To which logs the tasks wrote."""
    return (message.cluster_id for message in messages if isinstance(message, Wrote))


def _branches(messages: list[WriterCommitMessage | None]) -> list[branches.TaskBranch]:
    """Those of the tasks that had rows; a failed task's message is None."""
    return [
        message.branch
        for message in messages
        if isinstance(message, Wrote) and message.branch is not None
    ]
