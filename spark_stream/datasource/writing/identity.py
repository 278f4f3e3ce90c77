"""Who writes: under which transactional id, of which query and run, which micro-batch.

A stream sink's identity is the option ``sinkId``, or else the id that Spark gives a query and keeps
in its checkpoint (decision 14). A task learns its query, run and micro-batch from local properties
of its job. Spark does not document their names, so each is checked before a task writes: a sink
that guessed could take another's batch for its own, and drop it.

A batch write has no query. With ``sinkId`` and ``batchId`` its user names the batch, and every
attempt at it is a run of its own; without, it is a job that nobody will ask about again.
"""

from __future__ import annotations

import uuid
from typing import Final

from msgspec import Struct
from pyspark import TaskContext

from spark_stream.consistency.transactions.sinks import BATCH_WRITES
from spark_stream.errors import Unsupported

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
RUN: Final = "spark.jobGroup.id"


class BranchIdentity(Struct, frozen=True):
    """What a task opens its branch with.

    ``query`` owns the transactional id for good; ``instance`` is its present run, which fences the
    runs before it.
    """

    transactional_id: str
    query: str
    instance: str
    batch: int
    query_name: str = ""
    """The query's name for people."""

    @property
    def streaming(self) -> bool:
        """Whether it is a streaming query's."""
        return self.remembered and not self.query.startswith(BATCH_WRITES)

    @property
    def remembered(self) -> bool:
        """Whether its batch may be replayed, so that what it wrote has to be known."""
        return self.query != self.transactional_id


def of_job(query_name: str = "") -> BranchIdentity:
    """Make the identity of a batch write: new, and never used again."""
    name = f"job/{uuid.uuid4().hex}"
    return BranchIdentity(name, query=name, instance=name, batch=0, query_name=query_name)


def of_batch(sink_id: str, batch_id: int, query_name: str = "") -> BranchIdentity:
    """Make the identity of one attempt to write a batch that its user has numbered."""
    instance = f"batch/{uuid.uuid4().hex}"
    query = f"{BATCH_WRITES}{sink_id}"
    return BranchIdentity(f"sink/{sink_id}", query, instance, batch_id, query_name)


def of_task(
    sink_id: str | None, context: TaskContext | None, query_name: str = ""
) -> BranchIdentity:
    """Return the identity of the micro-batch that the task works for.

    Raises:
        Unsupported: naming the local property that Spark did not set, or set to something else.
    """
    query = _id(context, QUERY)
    run = _id(context, RUN)
    batch = _property(context, BATCH)
    if not (batch.isascii() and batch.isdecimal()):
        raise _unusable(BATCH, f"is {batch!r}, not a number")
    name = f"query/{query}" if sink_id is None else f"sink/{sink_id}"
    return BranchIdentity(name, query, run, int(batch), query_name)


def _id(context: TaskContext | None, key: str) -> str:
    value = _property(context, key)
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise _unusable(key, f"is {value!r}, not a UUID") from None


def _property(context: TaskContext | None, key: str) -> str:
    value = None if context is None else context.getLocalProperty(key)
    if not value:
        raise _unusable(key, "is not set")
    return value


def _unusable(key: str, what: str) -> Unsupported:
    return Unsupported(
        f"the exactly-once sink needs the local property {key!r} of Spark's task, which {what}",
        hint="Use a Spark release that isolog supports, or set transactional to false.",
        property=key,
    )
